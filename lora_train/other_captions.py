"""Training on other captions than a row's own: caption dropout, and preservation of what the base model does.

Their conditionings come from the cache: no text encoder is loaded during training.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..dataset_cache import EMPTY_CAPTION, Batch, Dataset, Samples, realize
from ..errors import TrainError
from .adapters import Network
from .denoiser import Denoiser


@dataclass(frozen=True)
class Dropout:
    """Caption dropout: some rows train on the cached empty caption instead of their own."""

    share: float
    empty: Any  # the conditioning of the empty caption, read once and shared by all rows; never written to

    def draw(self, rows: int, random: torch.Generator) -> Tensor:
        """Which rows of a batch are dropped."""
        return torch.rand(rows, generator=random) < self.share

    def apply(self, batch: Batch, dropped: Tensor) -> Batch:
        """A copy of the batch with the conditionings of these rows replaced."""
        words = [self.empty if drop else own for drop, own in zip(dropped.tolist(), batch.conditionings)]
        return with_conditionings(batch, words)


@dataclass(frozen=True)
class Preservation:
    """Keeps what the model does for a caption: with the adapter it shall predict what it predicts without.

    The rows of a batch, with the same noise and timesteps, get the caption of a class, or the empty one. The teacher is
    the model itself with the adapter off, so no second copy of it exists and no further images are needed.
    As ai-toolkit's blank prompt and differential output preservation.
    """

    weight: float
    share: float  # of the batches
    conditioning: Any

    def is_due(self, seed: str) -> bool:
        """Whether a batch takes part; `seed` names the run and the batch."""
        return self.share >= 1 or random.Random(seed).random() < self.share

    def loss(self, denoiser: Denoiser, network: Network, batch: Batch, x_t: Tensor, t: Tensor) -> Tensor:
        """The weighted loss of a batch, from two model calls; that of the teacher keeps nothing for a gradient."""
        words = denoiser.prepare(with_conditionings(batch, [self.conditioning] * len(batch.indices))).conditioning
        with torch.no_grad(), network.off():
            taught = denoiser.predict(x_t, t, words).float()
        return self.weight * (denoiser.predict(x_t, t, words).float() - taught).square().mean()


def with_conditionings(batch: Batch, words: list[Any]) -> Batch:
    """A copy of the batch with these conditionings."""
    return Batch(batch.indices, batch.latents, {**batch.fields, "conditioning": words}, lambda: batch.captions)


def check_caption(samples: Samples, setting: str, caption: str) -> None:
    """Refuse a caption that is neither empty nor named nor a sample's."""
    named = getattr(samples, "named", ())  # a plan has none
    if caption and caption not in named and _find(samples, caption) is None:
        raise TrainError(
            f'{setting} = "{caption}": is neither a caption of the dataset nor a named entry of the cache, and no text '
            "encoder is loaded during training; use a caption of the dataset, or leave it empty for the empty caption"
        )


def find_conditioning(dataset: Dataset, setting: str, caption: str) -> Any:
    """The cached conditioning of a caption: the empty one, a named entry, or a sample's."""
    check_caption(dataset, setting, caption)
    name = caption or EMPTY_CAPTION
    if name in dataset.named:
        return realize(dataset.entry(dataset.named[name]))
    place = _find(dataset, caption) if caption else None
    if place is None:
        raise TrainError(
            f"{setting}: the dataset has no encoded empty caption; encode it again, which adds only that, or turn the "
            "setting off"
        )
    index, variant = place
    return realize(dataset.sample(index, {"conditioning": variant}).conditioning)


def _find(samples: Samples, caption: str) -> tuple[int, int] | None:
    """The sample and variant with this caption."""
    for index in range(len(samples)):
        captions = samples.captions(index)
        if caption in captions:
            return index, list(captions).index(caption)
    return None
