"""Drawing rows for an epoch and spreading them over batches: flat arrays in, flat arrays out."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Pool:
    """Rows to draw from: every sample as often as it repeats, sorted by group."""

    samples: np.ndarray  # [rows] the sample of a row
    copies: np.ndarray | None  # [rows] the number of the repeat; None if nothing repeats
    sizes: np.ndarray  # [groups] rows per group
    keys: np.ndarray  # [groups] the key of each group, ascending

    @property
    def starts(self) -> np.ndarray:
        return np.cumsum(self.sizes) - self.sizes

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The samples of these rows, and the number of the repeat of each."""
        return self.samples[rows], None if self.copies is None else self.copies[rows]

    def draw(self, counts: np.ndarray, random: np.random.BitGenerator, part: np.ndarray | None = None) -> np.ndarray:
        """Row numbers, `counts[g]` of each group g: full passes over it, plus a random part for the rest.

        They are sorted by part (an ascending number per group; by default the group itself) and shuffled within.
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


@dataclass(frozen=True)
class Ranges:
    """Batch i has rows start[i]:stop[i], numbered over all buckets in turn, and belongs to bucket[i]."""

    start: np.ndarray
    stop: np.ndarray
    bucket: np.ndarray


def make_pool(samples: np.ndarray, repeats: np.ndarray, key: np.ndarray) -> Pool:
    """The pool of these samples, grouped by `key`; samples with 0 repeats are skipped."""
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
    """Distribute `total` draws over groups in proportion to their sizes; the remainder goes to random groups.

    Systematic sampling with integers: the sum is exact; each group gets its quota rounded down or up, and on average
    exactly its quota.
    """
    whole = int(sizes.sum())
    offset = int(random.random_raw() % whole)
    edges = (total * np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]) + offset) // whole
    return np.diff(edges)


def most_shared_out(total: int, sizes: np.ndarray) -> np.ndarray:
    """The most that `share_out` can give to each group."""
    return -(-total * sizes.astype(np.int64) // int(sizes.sum()))


def generator(seed: int, epoch: int, purpose: int) -> np.random.Philox:
    """A generator of its own. Only raw bits are used, which are the same in all versions of numpy."""
    return np.random.Philox(np.random.SeedSequence((seed, epoch, purpose)))


def shuffle_within(part: np.ndarray, random: np.random.BitGenerator) -> np.ndarray:
    """Positions sorted by part, in random order within each."""
    keys = random.random_raw(len(part))
    bits = int(part.max(initial=0)).bit_length()
    if bits:
        keys >>= np.uint64(bits)
        keys |= part.astype(np.uint64) << np.uint64(64 - bits)
    return np.argsort(keys, kind="stable")


def mix(values: np.ndarray, salt: int) -> np.ndarray:
    """64 pseudo-random bits per value (splitmix64), the same on every machine and independent of other values."""
    bits = values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.array([salt], np.uint64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def count_batches(most: np.ndarray, rows: int, batch_size: int) -> int:
    """Batches per epoch for `rows` rows, if bucket b never has more than most[b] of them."""
    return min(rows, int((-(-most // batch_size)).sum()))


def spread(sizes: np.ndarray, batch_size: int, length: int, full: bool = False) -> Ranges:
    """`length` batches over buckets of these sizes: 9 rows at batch size 4 are 3 + 3 + 3, or 4 + 4 + 1 if `full`."""
    least = -(-sizes // batch_size)
    batches = least.copy()
    _split_largest(sizes, batches, length - int(batches.sum()))
    bucket = np.repeat(np.arange(len(sizes)), batches)
    inside = np.arange(length) - offsets(batches)[bucket]
    begin, size, count = offsets(sizes)[bucket], sizes[bucket], batches[bucket]
    start, stop = inside * size // count, (inside + 1) * size // count
    if full:
        fits = (batches == least)[bucket]  # a bucket with extra batches is spread evenly over them
        start = np.where(fits, inside * batch_size, start)
        stop = np.where(fits, np.minimum(start + batch_size, size), stop)
    return Ranges(begin + start, begin + stop, bucket)


def offsets(sizes: np.ndarray) -> np.ndarray:
    """The start of each part if the parts follow each other."""
    return np.cumsum(sizes) - sizes


def _split_largest(sizes: np.ndarray, batches: np.ndarray, missing: int) -> None:
    """Split the fullest batches. Drawn sets are spread differently each epoch, which can need fewer batches."""
    if not missing:
        return
    heap = [(-size / count, place) for place, (size, count) in enumerate(zip(sizes, batches)) if size > count]
    heapq.heapify(heap)
    for _ in range(missing):
        _, place = heapq.heappop(heap)
        batches[place] += 1
        if sizes[place] > batches[place]:
            heapq.heappush(heap, (-sizes[place] / batches[place], place))


def _copies(repeats: np.ndarray) -> np.ndarray:
    ends = np.cumsum(repeats, dtype=np.int64)
    return np.arange(int(ends[-1])) - np.repeat(ends - repeats, repeats)
