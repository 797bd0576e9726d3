"""The order of training: the samples and variants of every batch, as a pure function of (seed, epoch).

A batch never mixes buckets. Every epoch shuffles samples within their bucket and batches across buckets; it does not
depend on earlier epochs. Buckets smaller than the batch size train too, and all epochs have the same number of batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ...dataset_cache import Dataset
from ...errors import TrainError
from .batch_plan import BatchPlan
from .draw import (
    Pool,
    Ranges,
    count_batches,
    generator,
    make_pool,
    mix,
    most_shared_out,
    offsets,
    share_out,
    shuffle_within,
    spread,
)

ENCODERS = {"latent": "VAE", "conditioning": "text encoder (CLIP)"}  # of the fields that training needs

# Purposes of random streams; no two purposes share a stream.
_ROWS, _PRIOR, _BATCHES, _COUNTS, _SPATIAL, _TEXT = range(6)


@dataclass(frozen=True)
class DatasetColumns:
    """The columns of a dataset that decide the order: one value per sample."""

    bucket: np.ndarray
    repeats: np.ndarray
    set: np.ndarray  # positions in `sets`
    sets: tuple[str, ...] = ("main",)
    variants: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class SetRule:
    """How a set takes part. A prior set gives every other row a partner; its own counts are ignored."""

    prior: bool = False
    samples: int | None = None  # rows per epoch; None: every sample as often as it repeats
    weight: float | None = None  # the same, as a share of that

    @classmethod
    def stored(cls, facts: Mapping[str, Any]) -> SetRule:
        """As a dataset describes the set."""
        return cls(bool(facts.get("prior", False)), facts.get("samples"), facts.get("weight"))

    def rows(self, size: int) -> int:
        """Rows per epoch from a set that has `size` rows."""
        if self.samples is not None:
            return self.samples
        return size if self.weight is None else max(1, round(self.weight * size))


@dataclass(frozen=True)
class Epoch:
    """The rows of one epoch, and its batches as [batches, 4]: start, stop of their rows and of the prior partners."""

    number: int
    samples: np.ndarray
    copies: np.ndarray | None
    ranges: np.ndarray


@dataclass(frozen=True, eq=False)
class Order:
    """The order of a run; epochs are computed when needed and not kept."""

    columns: DatasetColumns
    seed: int
    batch_size: int
    rules: Mapping[str, SetRule] = field(default_factory=dict)
    train: np.ndarray | None = None  # [samples] bool; False: held out
    full_batches: bool = False  # a bucket's batches are full except the last one, instead of about equal

    def __post_init__(self) -> None:
        unknown = sorted(set(self.rules) - set(self.columns.sets))
        if unknown:
            raise TrainError(f'set "{unknown[0]}": not in the dataset; expected one of {", ".join(self.columns.sets)}')
        if not len(self._main.samples):
            raise TrainError("the dataset has no samples to train on: all are held out, prior or have 0 repeats")

    def __len__(self) -> int:
        """Batches per epoch."""
        return self._main_batches + self._lone_batches

    @property
    def rows_per_epoch(self) -> int:
        """Rows per epoch, without prior partners."""
        return sum(total for _, total in self._totals)

    @property
    def largest(self) -> int:
        """Rows of the largest batch, including prior partners."""
        return self.batch_size * (2 if self._has_prior else 1)

    def walk(self, start: int = 0) -> Iterator[BatchPlan]:
        """All batches of the run from number `start` on; never ends."""
        number, place = divmod(start, len(self))
        while True:
            epoch = self.epoch(number)
            for index in range(place, len(self)):
                yield self.plan(epoch, index)
            number, place = number + 1, 0

    def epoch(self, number: int) -> Epoch:
        """The rows and batches of an epoch, from its number alone."""
        counts = self._counts(number)
        rows = self._main.draw(counts, generator(self.seed, number, _ROWS), self._place)
        sizes = np.bincount(self._place, counts, len(self._buckets)).astype(np.int64)
        ranges = spread(sizes, self.batch_size, self._main_batches, self.full_batches)
        table = np.stack([ranges.start, ranges.stop, ranges.start * 0, ranges.start * 0], 1)
        samples, copies = self._main.take(rows)
        if self._has_prior:
            samples, copies, table = self._add_prior(number, sizes, ranges, table, samples, copies)
        mixed = shuffle_within(np.zeros(len(table), np.int64), generator(self.seed, number, _BATCHES))
        return Epoch(number, samples, copies, table[mixed])

    def plan(self, epoch: Epoch, place: int) -> BatchPlan:
        """The batch at this position of an epoch, with the variants of its rows."""
        start, stop, prior_start, prior_stop = epoch.ranges[place].tolist()
        samples = _cut(epoch.samples, start, stop, prior_start, prior_stop)
        copies = None if epoch.copies is None else _cut(epoch.copies, start, stop, prior_start, prior_stop)
        variants = self._draw_variants(samples, copies, epoch.number)
        return BatchPlan(epoch.number * len(self) + place, epoch.number, samples.tolist(), variants, stop - start)

    @cached_property
    def _main(self) -> Pool:
        return self._pool(prior=False)

    @cached_property
    def _prior(self) -> Pool:
        return self._pool(prior=True)

    def _pool(self, prior: bool) -> Pool:
        """Main rows are grouped by bucket and set, prior rows by bucket."""
        is_prior = np.array([self._rule(name).prior for name in self.columns.sets], bool)
        chosen = is_prior[self.columns.set] == prior
        if self.train is not None:
            chosen &= self.train
        samples = np.flatnonzero(chosen)
        key = self.columns.bucket[samples].astype(np.int64) * len(self.columns.sets)
        if not prior:
            key += self.columns.set[samples]
        return make_pool(samples, self.columns.repeats[samples], key)

    def _rule(self, name: str) -> SetRule:
        return self.rules.get(name, SetRule())

    @cached_property
    def _has_prior(self) -> bool:
        return len(self._prior.samples) > 0

    @cached_property
    def _buckets(self) -> np.ndarray:
        """Buckets that have main rows, ascending."""
        return np.unique(self._main.keys // len(self.columns.sets))

    @cached_property
    def _place(self) -> np.ndarray:
        """[main groups] the position of a group's bucket in `_buckets`."""
        return np.searchsorted(self._buckets, self._main.keys // len(self.columns.sets))

    @cached_property
    def _totals(self) -> list[tuple[np.ndarray, int]]:
        """For every main set: its groups, and its rows per epoch."""
        owner = self._main.keys % len(self.columns.sets)
        groups = {name: np.flatnonzero(owner == number) for number, name in enumerate(self.columns.sets)}
        return [(g, self._rule(name).rows(int(self._main.sizes[g].sum()))) for name, g in groups.items() if len(g)]

    def _counts(self, number: int) -> np.ndarray:
        """[main groups] rows that this epoch takes from each group."""
        random = generator(self.seed, number, _COUNTS)
        counts = np.zeros(len(self._main.sizes), np.int64)
        for groups, total in self._totals:
            counts[groups] = share_out(total, self._main.sizes[groups], random)
        return counts

    @cached_property
    def _main_batches(self) -> int:
        most = np.zeros(len(self._buckets), np.int64)
        for groups, total in self._totals:
            np.add.at(most, self._place[groups], most_shared_out(total, self._main.sizes[groups]))
        return count_batches(most, self.rows_per_epoch, self.batch_size)

    @cached_property
    def _matched(self) -> np.ndarray:
        """[buckets] the prior group of the same bucket, or -1."""
        prior = self._prior.keys // len(self.columns.sets)
        place = np.searchsorted(prior, self._buckets).clip(max=max(len(prior) - 1, 0))
        return np.where(prior[place] == self._buckets, place, -1) if len(prior) else place - 1

    @cached_property
    def _lone_rows(self) -> int:
        """Main rows per epoch in buckets without prior samples; their partners train in separate batches."""
        rows = 0.0
        for groups, total in self._totals:
            sizes = self._main.sizes[groups]
            rows += total * float(sizes[self._matched[self._place[groups]] < 0].sum() / sizes.sum())
        return round(rows) if self._has_prior else 0

    @cached_property
    def _lone_batches(self) -> int:
        if not self._lone_rows:
            return 0
        return count_batches(most_shared_out(self._lone_rows, self._prior.sizes), self._lone_rows, self.batch_size)

    def _add_prior(
        self,
        number: int,
        sizes: np.ndarray,
        ranges: Ranges,
        table: np.ndarray,
        samples: np.ndarray,
        copies: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Append prior rows: a partner for every main row whose bucket has any, then batches of prior rows only."""
        random = generator(self.seed, number, _PRIOR)
        matched = self._matched >= 0
        counts = np.zeros(len(self._prior.sizes), np.int64)
        counts[self._matched[matched]] = sizes[matched]
        paired = self._prior.take(self._prior.draw(counts, random))
        begin = np.zeros(len(sizes), np.int64)
        begin[matched] = len(samples) + offsets(counts)[self._matched[matched]]
        shift = np.where(matched, begin - offsets(sizes), 0)[ranges.bucket]
        table[:, 2:] = (table[:, :2] + shift[:, None]) * matched[ranges.bucket][:, None]
        lone, lone_table = self._lone(random, len(samples) + len(paired[0]))
        samples, copies = _join((samples, copies), paired, lone)
        return samples, copies, np.concatenate([table, lone_table])

    def _lone(
        self, random: np.random.BitGenerator, first: int
    ) -> tuple[tuple[np.ndarray, np.ndarray | None], np.ndarray]:
        if not self._lone_rows:
            return self._prior.take(np.zeros(0, np.int64)), np.zeros((0, 4), np.int64)
        counts = share_out(self._lone_rows, self._prior.sizes, random)
        ranges = spread(counts, self.batch_size, self._lone_batches, self.full_batches)
        table = np.stack([ranges.start * 0, ranges.start * 0, ranges.start + first, ranges.stop + first], 1)
        return self._prior.take(self._prior.draw(counts, random)), table

    def _draw_variants(self, samples: np.ndarray, copies: np.ndarray | None, epoch: int) -> dict[str, list[int]]:
        """Drawn from (seed, epoch, sample, repeat): one draw for text, one for all spatial fields, which must match."""
        values = samples if copies is None else samples + (copies.astype(np.int64) << 40)
        return {
            name: (mix(values, self._salt(epoch, name)) % np.maximum(counts[samples], 1).astype(np.uint64)).tolist()
            for name, counts in self._several.items()
        }

    @cached_property
    def _several(self) -> dict[str, np.ndarray]:
        """Fields with more than one variant in some sample."""
        return {name: counts for name, counts in self.columns.variants.items() if counts.max(initial=0) > 1}

    def _salt(self, epoch: int, name: str) -> int:
        return _salt(self.seed, epoch, _TEXT if name == "conditioning" else _SPATIAL)


def read_columns(dataset: Dataset) -> DatasetColumns:
    """Read the columns; a sample without a latent or conditioning is an error that names it."""
    if not len(dataset):
        raise TrainError("the dataset has no samples; encode images first")
    variants = {name: np.asarray(dataset.variants(name)) for name in dataset.fields}
    for name in ENCODERS:
        _refuse_holes(dataset, name, variants.get(name))
    if "mask" in variants:
        _refuse_unaligned(dataset, variants["latent"], variants["mask"])
    bucket, repeats, sets = (np.asarray(dataset.column(name)) for name in ("bucket", "repeats", "set"))
    return DatasetColumns(bucket, repeats, sets, tuple(dataset.sets), variants)


@lru_cache(maxsize=16)
def _salt(seed: int, epoch: int, purpose: int) -> int:
    return int(generator(seed, epoch, purpose).random_raw())


def _cut(values: np.ndarray, start: int, stop: int, prior_start: int, prior_stop: int) -> np.ndarray:
    main = values[start:stop]
    return main if prior_start == prior_stop else np.concatenate([main, values[prior_start:prior_stop]])


def _join(*parts: tuple[np.ndarray, np.ndarray | None]) -> tuple[np.ndarray, np.ndarray | None]:
    """One array of samples, and one of copies if any part has them."""
    samples = np.concatenate([part[0] for part in parts])
    if all(part[1] is None for part in parts):
        return samples, None
    return samples, np.concatenate([np.zeros(len(s), np.int64) if c is None else c for s, c in parts])


def _refuse_holes(dataset: Dataset, name: str, counts: np.ndarray | None) -> None:
    holes = np.arange(len(dataset)) if counts is None else np.flatnonzero(counts == 0)
    if len(holes) == len(dataset):
        raise TrainError(f"the dataset has no {name}s: it was encoded without a {ENCODERS[name]}; encode it with one")
    if len(holes):
        first = int(holes[0])
        raise TrainError(
            f"sample {first} ({dataset.source(first)}): {name} is missing ({len(holes):,} of {len(dataset):,} samples)"
            "; encode the dataset again, which adds only what is missing"
        )


def _refuse_unaligned(dataset: Dataset, latents: np.ndarray, masks: np.ndarray) -> None:
    wrong = np.flatnonzero((masks != 0) & (masks != latents))
    if len(wrong):
        first = int(wrong[0])
        raise TrainError(
            f"sample {first} ({dataset.source(first)}): has {masks[first]} masks for {latents[first]} latents, "
            "but every flipped latent needs a flipped mask; encode the dataset again"
        )
