"""The reference model as a Denoiser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..lora_train import (
    FlowSchedule,
    Naming,
    NoiseSchedule,
    Prediction,
    PreparedBatch,
    Shapes,
    TrainError,
    per_row,
    room_on,
)
from .encoders import encode_caption, latent_scale
from .model import ReferenceModel

if TYPE_CHECKING:
    from ..dataset_cache import Batch

# Shift of the timesteps in training and sampling: shapes are decided early, at high noise.
SHIFT = 6.0
SHIFTS: dict[Prediction, float] = {"flow": SHIFT, "eps": 3.0, "v": 3.0}
GUIDANCE = 1.0  # any other value costs a second model call per sampling step
WRAPPINGS = {"comfyui": "diffusion_model.", "kohya": "lora_unet_", "diffusers": "transformer."}


@dataclass(frozen=True)
class Text:
    """Conditionings as the model's input: row i belongs to latent i."""

    tokens: Tensor  # [B, T, 64], rows of zeros are padding
    pooled: Tensor  # [B, 64]


class ReferenceDenoiser:
    """A ReferenceModel as a Denoiser."""

    architecture = "streamcache-reference"

    def __init__(self, model: ReferenceModel, shift: float | None = None, guidance: float = GUIDANCE) -> None:
        self.model = model
        self.schedule: NoiseSchedule = model.schedule
        self.shift = SHIFTS[self.schedule.prediction] if shift is None else shift
        self.guidance = guidance
        self.device = model.image_in.weight.device
        self.ram, self.can_offload = torch.device("cpu"), False

    def prepare_for(self, dataset: Any) -> None:
        for bucket, indices in dataset.buckets().items():
            shape, expected = tuple(bucket.shape), self.model.size.channels
            if len(shape) != 3 or shape[0] != expected:
                raise TrainError(
                    f"dataset: found latents of {shape[0]} channels and shape {shape}, expected {expected} channels "
                    "as [channels, height, width]; encode it with the VAE of this model"
                )
            self._check_text(dataset[int(indices[0])].conditioning)

    def prepare(self, batch: Batch) -> PreparedBatch:
        assert batch.latents is not None  # `prepare_for` has seen the dataset's latents
        latents = batch.latents.to(self.device, torch.float32) / latent_scale(self.device)
        return PreparedBatch(latents, self._join(batch.conditionings))

    def predict(self, x_t: Tensor, t: Tensor, conditioning: Text) -> Tensor:
        return self.model(x_t, t, conditioning.tokens, conditioning.pooled)

    def adaptable(self) -> dict[str, nn.Module]:
        return {
            name: module for name, module in self.model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)
        }

    def groups(self) -> dict[str, list[str]]:
        names = list(self.adaptable())
        attention = [name for name in names if ".attn." in name or ".cross." in name]
        mlp = [name for name in names if ".mlp." in name]
        return {"attention": attention, "attention+mlp": [n for n in names if n in {*attention, *mlp}], "all": names}

    def blocks(self) -> list[nn.Module]:
        return list(self.model.blocks)

    def export_names(self, naming: Naming) -> dict[str, str]:
        flat = naming == "kohya"
        return {name: WRAPPINGS[naming] + (name.replace(".", "_") if flat else name) for name in self.adaptable()}

    @contextmanager
    def traced(self, dataset: Any, shapes: Shapes, offload: bool | None = None) -> Iterator[None]:
        latent_scale(self.device)  # kept from its first call on, which must not be one without data
        with self.session(), shapes.instead_of_weights(self.model, lambda module: self.device):
            yield

    def weights(self) -> list[Tensor]:
        return [*self.model.parameters(), *self.model.buffers()]

    def room(self) -> int:
        return room_on(self.device, sum(tensor.nbytes for tensor in self.weights()))

    def resident(self, away: int, need: int) -> int:
        return 0

    @contextmanager
    def session(self) -> Iterator[None]:
        """Freeze the model and set it to eval mode; restore both at the end."""
        wanted = {parameter: parameter.requires_grad for parameter in self.model.parameters()}
        modes = {module: module.training for module in self.model.modules()}
        try:
            self.model.requires_grad_(False).eval()
            yield
        finally:
            for parameter, required in wanted.items():
                parameter.requires_grad_(required)
            for module, training in modes.items():
                module.training = training

    @torch.no_grad()
    def sample(self, conditioning: Any, shape: Sequence[int], seed: int, steps: int) -> Tensor:
        shape = tuple(shape) if len(shape) == 4 else (1, *shape)
        given, empty = (self._join([c] * shape[0]) for c in (conditioning, encode_caption("")))
        x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(self.device)
        clean = x
        times = self.schedule.shifted(torch.linspace(1, 0, steps + 1), self.shift)
        for now, after in pairwise(times):
            clean, noise = self._guess(x, now.expand(shape[0]).to(self.device), given, empty)
            x = self.schedule.noisy(clean, noise, after.expand(shape[0]).to(self.device))
        return clean * latent_scale(self.device)

    def _guess(self, x: Tensor, t: Tensor, given: Text, empty: Text) -> tuple[Tensor, Tensor]:
        """The clean latents and the noise that follow from the guided prediction."""
        out = self.predict(x, t, given)
        if self.guidance != 1:
            without = self.predict(x, t, empty)
            out = without + self.guidance * (out - without)
        schedule = self.model.schedule
        if isinstance(schedule, FlowSchedule):
            share = per_row(t, x)
            return x - share * out, x + (1 - share) * out
        alpha = per_row(schedule.alpha(t), x)
        signal, noise = alpha.sqrt(), (1 - alpha).sqrt()
        if self.schedule.prediction == "v":
            return signal * x - noise * out, noise * x + signal * out
        return (x - noise * out) / signal, out

    def _join(self, conditionings: Sequence[Any]) -> Text:
        """Pad the tokens to the longest row. Padding is masked, so it does not change a caption's result."""
        for conditioning in conditionings:
            self._check_text(conditioning)
        tokens = [conditioning[0][0] for conditioning in conditionings]
        longest = max(row.shape[1] for row in tokens)
        padded = [F.pad(row.to(self.device, torch.float32), (0, 0, 0, longest - row.shape[1])) for row in tokens]
        pooled = [conditioning[0][1]["pooled_output"].to(self.device, torch.float32) for conditioning in conditionings]
        return Text(torch.cat(padded), torch.cat(pooled))

    def _check_text(self, conditioning: Any) -> None:
        if len(conditioning) != 1 or "pooled_output" not in conditioning[0][1]:
            raise TrainError(
                f"conditioning: found {len(conditioning)} entries, expected one with a pooled_output; "
                "encode the captions with the text encoder of this model"
            )
        width = conditioning[0][0].shape[-1]
        if width != self.model.size.text_width:
            raise TrainError(
                f"conditioning: found a width of {width}, expected {self.model.size.text_width}; "
                "encode the captions with the text encoder of this model"
            )
