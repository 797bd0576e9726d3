"""Draws: which samples an epoch uses and how often, from repeats, set counts and private generators."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Pool:
    """Rows that can be drawn: every sample as often as it repeats, sorted by group, in flat arrays."""

    samples: np.ndarray  # [rows] the sample of a row
    copies: np.ndarray | None  # [rows] which repeat of its sample a row is; None when nothing repeats
    sizes: np.ndarray  # [groups] rows of a group
    keys: np.ndarray  # [groups] what the group stands for, rising

    @property
    def starts(self) -> np.ndarray:
        return np.cumsum(self.sizes) - self.sizes

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The samples of these rows, and which repeat each is."""
        return self.samples[rows], None if self.copies is None else self.copies[rows]

    def draw(self, counts: np.ndarray, random: np.random.BitGenerator, part: np.ndarray | None = None) -> np.ndarray:
        """Row numbers, `counts[g]` of each group g: whole passes over it, and for the rest a random part of it.

        They come sorted by part (a rising number per group; the group itself when none is given), shuffled inside it.
        """
        group = np.repeat(np.arange(len(self.sizes)), self.sizes)
        if np.array_equal(counts, self.sizes):
            drawn = np.arange(len(self.samples))
        else:
            order = shuffle_within(group, random)
            whole, rest = np.divmod(counts, np.maximum(self.sizes, 1))
            place = np.arange(len(order)) - self.starts[group]
            drawn = np.repeat(order, whole[group] + (place < rest[group]))
            group = np.repeat(np.arange(len(counts)), counts)
        return drawn[shuffle_within(group if part is None else part[group], random)]


def make_pool(samples: np.ndarray, repeats: np.ndarray, key: np.ndarray) -> Pool:
    """The pool of these samples, grouped by `key`; a sample with 0 repeats is left out."""
    copies = None
    if (repeats != 1).any():
        copies = _copies(repeats)
        samples, key = np.repeat(samples, repeats), np.repeat(key, repeats)
    order = np.argsort(key, kind="stable")
    key = key[order]
    edges = np.flatnonzero(np.diff(key, prepend=key[:1] - 1))
    sizes = np.diff(edges, append=len(key))
    return Pool(samples[order], None if copies is None else copies[order], sizes, key[edges])


def share_out(total: int, sizes: np.ndarray, random: np.random.BitGenerator) -> np.ndarray:
    """`total` draws over groups in proportion to their sizes; what does not divide goes to other groups each time.

    Systematic sampling in whole numbers: the sum is exact, a group gets its quota rounded down or up, and on
    average its quota.
    """
    whole = int(sizes.sum())
    offset = int(random.random_raw() % whole)
    edges = (total * np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]) + offset) // whole
    return np.diff(edges)


def most_shared_out(total: int, sizes: np.ndarray) -> np.ndarray:
    """The most that `share_out` ever gives to each group."""
    return -(-total * sizes.astype(np.int64) // int(sizes.sum()))


def generator(seed: int, epoch: int, purpose: int) -> np.random.Philox:
    """A private stream. Raw bits only are used, which numpy keeps the same over its versions."""
    return np.random.Philox(np.random.SeedSequence((seed, epoch, purpose)))


def shuffle_within(part: np.ndarray, random: np.random.BitGenerator) -> np.ndarray:
    """Positions sorted by part, in random order inside each."""
    keys = random.random_raw(len(part))
    bits = int(part.max(initial=0)).bit_length()
    if bits:
        keys >>= np.uint64(bits)
        keys |= part.astype(np.uint64) << np.uint64(64 - bits)
    return np.argsort(keys, kind="stable")


def mix(values: np.ndarray, salt: int) -> np.ndarray:
    """Well-mixed 64 bits for each value (splitmix64), the same on every machine and in any order of asking."""
    bits = values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.array([salt], np.uint64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _copies(repeats: np.ndarray) -> np.ndarray:
    ends = np.cumsum(repeats, dtype=np.int64)
    return np.arange(int(ends[-1])) - np.repeat(ends - repeats, repeats)


@dataclass(frozen=True)
class Ranges:
    """Batch i holds rows start[i]:stop[i], counted over all buckets in turn; its bucket is bucket[i]."""

    start: np.ndarray
    stop: np.ndarray
    bucket: np.ndarray


def count_batches(most: np.ndarray, rows: int, batch_size: int) -> int:
    """Batches that hold `rows` rows in every epoch, when bucket b never has more than most[b] of them."""
    return min(rows, int((-(-most // batch_size)).sum()))


def spread(sizes: np.ndarray, batch_size: int, length: int) -> Ranges:
    """`length` batches over buckets of these sizes: 9 rows at batch size 4 are 3 + 3 + 3, not 4 + 4 + 1."""
    batches = -(-sizes // batch_size)
    _split_largest(sizes, batches, length - int(batches.sum()))
    bucket = np.repeat(np.arange(len(sizes)), batches)
    inside = np.arange(length) - offsets(batches)[bucket]
    begin, size, count = offsets(sizes)[bucket], sizes[bucket], batches[bucket]
    return Ranges(begin + inside * size // count, begin + (inside + 1) * size // count, bucket)


def offsets(sizes: np.ndarray) -> np.ndarray:
    """Where each part begins when the parts lie one after the other."""
    return np.cumsum(sizes) - sizes


def _split_largest(sizes: np.ndarray, batches: np.ndarray, missing: int) -> None:
    """Add batches where they are fullest. Drawn sets fall on other buckets each epoch, which can save a batch."""
    if not missing:
        return
    heap = [(-size / count, place) for place, (size, count) in enumerate(zip(sizes, batches)) if size > count]
    heapq.heapify(heap)
    for _ in range(missing):
        _, place = heapq.heappop(heap)
        batches[place] += 1
        if sizes[place] > batches[place]:
            heapq.heappush(heap, (-sizes[place] / batches[place], place))
