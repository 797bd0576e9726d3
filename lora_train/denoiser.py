"""The model protocol: everything that the trainer needs from a model.

The reference model and ComfyUI's models implement it; docs/training.md has a complete example.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..dataset_cache import Batch, Dataset
    from .forecast import Shapes

Prediction = Literal["eps", "v", "flow"]
Naming = Literal["comfyui", "kohya", "diffusers"]
NAMINGS: tuple[Naming, ...] = get_args(Naming)


@dataclass(frozen=True)
class PreparedBatch:
    """A batch as input for the model: row i of `latents` belongs to row i of `conditioning`."""

    latents: Tensor  # [B, C, (T,) H, W], scaled into the model's latent space, float32, on the device
    conditioning: Any  # what `predict` takes for these rows


@dataclass(frozen=True)
class LayerRows:
    """What a prefix in a LoRA file means: a layer, or some of its rows, in the order of the file's rows."""

    module: str
    rows: Sequence[int] | None = None  # None: all


@runtime_checkable
class OtherNames(Protocol):
    """A denoiser whose layers have further names in LoRA files, which may split a fused layer. Optional."""

    def other_names(self) -> dict[str, LayerRows]:
        """Key prefix in a LoRA file → layer or rows of it, for files to continue from."""
        ...


@runtime_checkable
class Downscaled(Protocol):
    """A denoiser that knows how much larger images are than its latents. Optional: 8, if it does not."""

    downscale: int  # image pixels per latent along an axis


@runtime_checkable
class Traceable(Protocol):
    """A denoiser whose memory can be computed in advance. Optional."""

    ram: torch.device  # where offloaded weights and activations wait
    can_offload: bool  # whether weights that are on the device could be moved off it

    def traced(self, dataset: Dataset, shapes: Shapes, offload: bool | None) -> AbstractContextManager[None]:
        """A session without data, in which the model is neither loaded nor changed.

        `offload` overrides the denoiser's own setting; a denoiser without one ignores it.
        """
        ...

    def weights(self) -> Iterable[Tensor]:
        """All tensors of the model."""
        ...

    def room(self) -> int:
        """Bytes that the device has for this training, with those that the model takes there already; 0 if unknown."""
        ...

    def resident(self, away: int, need: int) -> int:
        """Of `away` bytes of offloaded weights, how many stay on the device if everything else takes `need` there."""
        ...


@runtime_checkable
class NoiseSchedule(Protocol):
    """How data and noise mix. `t` is [B] in [0, 1]: 0 is no noise, 1 is only noise."""

    prediction: Prediction

    def noisy(self, latents: Tensor, noise: Tensor, t: Tensor) -> Tensor: ...

    def target(self, latents: Tensor, noise: Tensor, t: Tensor) -> Tensor: ...

    def snr(self, t: Tensor) -> Tensor: ...

    def shifted(self, t: Tensor, shift: float) -> Tensor: ...


@runtime_checkable
class Denoiser(Protocol):
    """A model to train an adapter for. The trainer uses nothing else of the model."""

    device: torch.device
    schedule: NoiseSchedule

    def prepare_for(self, dataset: Dataset) -> None:
        """Called once before training: keep what `prepare` needs of the dataset (sizes, the empty caption).

        A dataset that does not fit (channels, conditioning width) raises a TrainError that names both numbers.
        """
        ...

    def prepare(self, batch: Batch) -> PreparedBatch:
        """Scale the latents and join the conditionings, one per latent and in the same order."""
        ...

    def predict(self, x_t: Tensor, t: Tensor, conditioning: Any) -> Tensor:
        """The model's native prediction (eps, v or velocity), in one model call."""
        ...

    def adaptable(self) -> dict[str, nn.Module]:
        """Every linear layer and convolution that can get an adapter, by name."""
        ...

    def groups(self) -> dict[str, list[str]]:
        """Target presets: "attention", "attention+mlp", "all" → names from `adaptable`."""
        ...

    def blocks(self) -> list[nn.Module]:
        """The blocks that gradient checkpointing recomputes, each on its own."""
        ...

    def export_names(self, naming: Naming) -> dict[str, str]:
        """Module name → its key prefix in a LoRA file of this naming."""
        ...

    def session(self) -> AbstractContextManager[None]:
        """A context around the whole training: set the model up, and restore it afterwards."""
        ...

    def sample(self, conditioning: Any, shape: tuple[int, ...], seed: int, steps: int) -> Tensor:
        """Latents [B, C, (T,) H, W] in the dataset's (unscaled) latent space, for sample images.

        `conditioning` is an entry of the dataset; `shape` is a bucket's shape, with or without the batch axis.
        """
        ...
