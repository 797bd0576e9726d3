"""What the trainer needs of a model: the protocol that the reference model and the host's models implement."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from ..dataset_cache import Batch

Prediction = Literal["eps", "v", "flow"]
Naming = Literal["comfyui", "kohya", "diffusers"]


@dataclass(frozen=True)
class PreparedBatch:
    """A batch as the model takes it: row i of `latents` belongs to row i of `conditioning`."""

    latents: Tensor  # [B, C, (T,) H, W], scaled into the model's latent space, float32, on the device
    conditioning: Any  # what `predict` takes for exactly these rows


@runtime_checkable
class NoiseSchedule(Protocol):
    """How noise and data mix. `t` is [B] in [0, 1]: 0 is clean, 1 is noise."""

    prediction: Prediction

    def noisy(self, latents: Tensor, noise: Tensor, t: Tensor) -> Tensor: ...

    def target(self, latents: Tensor, noise: Tensor, t: Tensor) -> Tensor: ...

    def snr(self, t: Tensor) -> Tensor: ...

    def shifted(self, t: Tensor, shift: float) -> Tensor: ...


@runtime_checkable
class Denoiser(Protocol):
    """A model to train an adapter on. Nothing else of the model is known to the trainer."""

    device: torch.device
    schedule: NoiseSchedule

    def prepare_for(self, dataset: Any) -> None:
        """Called once before training: keep what `prepare` needs of the dataset (sizes, the empty caption).

        A dataset that does not fit (channels, conditioning width) raises a TrainError that names both numbers.
        """

    def prepare(self, batch: Batch) -> PreparedBatch:
        """Scale the latents and join the conditionings, so that each latent meets its own caption and only that."""

    def predict(self, x_t: Tensor, t: Tensor, conditioning: Any) -> Tensor:
        """The model's native prediction (eps, v or velocity): one model call of B rows."""

    def adaptable(self) -> dict[str, nn.Module]:
        """Every linear and convolution that an adapter can hang on, by name."""

    def groups(self) -> dict[str, list[str]]:
        """Target presets: "attention", "attention+mlp", "all" → names out of `adaptable`."""

    def blocks(self) -> list[nn.Module]:
        """The blocks that gradient checkpointing recomputes one at a time."""

    def export_names(self, naming: Naming) -> dict[str, str]:
        """Module name → the key prefix that this naming gives it in a LoRA file."""

    def session(self) -> AbstractContextManager[None]:
        """What has to be set up around training, and is put back whatever happens."""

    def sample(self, conditioning: Any, shape: tuple[int, ...], seed: int, steps: int) -> Tensor:
        """Latents [B, C, (T,) H, W] in the dataset's (unscaled) latent space, for previews.

        `conditioning` is one of the dataset's; `shape` is a bucket's shape, without the batch axis, or with it.
        """
