"""Spreading rows over batches: evenly, never across buckets, and always into the same number of batches."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np


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
