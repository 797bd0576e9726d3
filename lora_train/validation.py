"""Validation: samples held out by a hash of their source, always measured with the same noise and timesteps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ..dataset_cache import Dataset, Samples
from ..errors import TrainError
from .adapters import seeded_generator
from .data import KnownSizes
from .denoiser import Denoiser
from .memory import Precision
from .objective import ObjectiveSettings, draw_noise, draw_times, evaluate
from .other_captions import with_conditionings
from .ranks import ALONE, Ranks

MIN_ROWS = 32  # rows of (sample, noise, timestep) that are measured even if fewer samples are held out


@dataclass(frozen=True)
class HeldOut:
    """The samples that are not trained on: a mask over all, and their indices in the order of their hashes."""

    mask: np.ndarray
    samples: tuple[int, ...]


def hold_out(dataset: Samples, share: float, prior: np.ndarray) -> HeldOut:
    """Hold out about this share of the samples, prior samples excluded.

    The choice depends on a sample's source only: it is the same for every seed and when the dataset grows, and all
    samples of one image are on the same side. A sample without a source counts by its index.
    """
    mask = np.zeros(len(dataset), bool)
    candidates = np.flatnonzero(~prior)
    if not share or not len(candidates):
        return HeldOut(mask, ())
    hashes = np.array([_hash(dataset, int(index)) for index in candidates])
    # At least one sample is held out, even of a small dataset.
    chosen = hashes <= max(share, hashes.min())
    if chosen.all():
        raise TrainError(
            f"validation_share = {share}: would hold out all {len(candidates)} samples; set a smaller share, or 0"
        )
    mask[candidates[chosen]] = True
    order = np.argsort(hashes[chosen], kind="stable")
    return HeldOut(mask, tuple(candidates[chosen][order].tolist()))


@dataclass(frozen=True)
class Validation:
    """Measures the same rows every time: each with its own noise and timestep, independent of its batch."""

    dataset: Dataset
    samples: tuple[int, ...]
    batch_size: int
    objective: ObjectiveSettings
    sizes: KnownSizes
    empty: Any = None  # the conditioning of the empty caption, for guided targets, as in training

    def measure(self, denoiser: Denoiser, precision: Precision, ranks: Ranks = ALONE) -> float:
        """The mean loss of the held-out samples, on the scale of the reported loss of steps.

        Shares no random generator with training. Ranks share the batches out.
        """
        random, pixels = seeded_generator("validation times"), self.sizes.pixels(self.rows)
        times = draw_times(len(self.rows), denoiser.schedule, self.objective, random, pixels)
        batches = list(self._batches())
        losses = torch.zeros(len(batches), dtype=torch.float64)
        for number in range(ranks.rank, len(batches), ranks.size):
            rows = batches[number]
            losses[number] = self._losses(denoiser, precision, rows, times[rows]).double().sum().cpu()
        ranks.any(False)  # one that has failed until here says so
        return float(ranks.add(losses).sum() / len(self.rows))

    @cached_property
    def rows(self) -> list[int]:
        """Sample indices, repeated up to `MIN_ROWS`."""
        return list(self.samples) * -(-MIN_ROWS // len(self.samples))

    def _batches(self) -> Iterator[list[int]]:
        """Row numbers in batches of one bucket."""
        bucket = self.dataset.column("bucket")[self.rows]
        for number in np.unique(bucket):
            rows = np.flatnonzero(bucket == number).tolist()
            for start in range(0, len(rows), self.batch_size):
                yield rows[start : start + self.batch_size]

    @torch.no_grad()
    def _losses(self, denoiser: Denoiser, precision: Precision, rows: list[int], times: torch.Tensor) -> torch.Tensor:
        batch = self.dataset.read_batch([self.rows[row] for row in rows])
        prepared = denoiser.prepare(batch)
        noise = [draw_noise(one[None], self.objective, seeded_generator(f"validation {row}"))
                 for one, row in zip(prepared.latents, rows)]  # fmt: skip
        bare = None
        if self.empty is not None:
            bare = denoiser.prepare(with_conditionings(batch, [self.empty] * len(rows))).conditioning
        drawn = torch.cat(noise), times
        with precision.autocast(), self.sizes.explained(self.rows[rows[0]], prepared.latents.shape):
            return evaluate(denoiser, prepared, *drawn, self.objective, batch.masks, without_caption=bare)


def _hash(dataset: Samples, index: int) -> float:
    """A number in (0, 1] from the sample's source."""
    name = dataset.source(index) or f"#{index}"
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "little") + 1) / 2**64
