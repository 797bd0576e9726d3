"""Whether what a writer collected is what is published already: the same samples, whatever numbers their texts have.

The arrays of two indexes with the same content may differ: a text that was added later has another number, or several.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..format import Manifest
from ..index import NO_BUCKET, Index, captions_of, string_of
from .checked import CheckedGeneration
from .index_builder import Added, IndexBuilder

_CHUNK = 1 << 16  # samples
_PLAIN = ("caption_count", "repeats", "weight", "original_size", "crop")  # of a row: what is no number of something


def find_same(base: CheckedGeneration, builder: IndexBuilder, added: Added, draft: Manifest) -> Manifest | None:
    """The manifest of the base, if publishing the draft with these rows would change nothing for a reader."""
    before = base.manifest
    if len(added.arrays.entries) or sum(count for _, count in added.runs) != base.index.sample_count:
        return None
    # What the index decides is the same if the samples are.
    decided = {name: getattr(before, name) for name in ("index_bytes", "index_hash", "counts", "buckets", "requires")}
    if replace(draft, **decided).with_segments(before.segments, before.runs).generation != before.generation:
        return None
    comparison = _Comparison(base, builder, added)
    return before if all(comparison.is_same(*piece) for piece in _pieces(base.index, added)) else None


def _pieces(index: Index, added: Added) -> Iterator[tuple[Index, int, int, int]]:
    """(file, first row in it, the row behind the last, number of the first row that takes their place)."""
    at = 0
    for first, count in added.runs:
        for start in range(0, count, _CHUNK):
            row = first + start
            for part, a, b in index.pieces(at + start, at + min(start + _CHUNK, count)):
                yield part, a, b, row
                row += b - a
        at += count


class _Comparison:
    """New rows with those of the base, whose sets and buckets may be numbered otherwise."""

    def __init__(self, base: CheckedGeneration, builder: IndexBuilder, added: Added) -> None:
        self._index, self._new, self._width = base.index, added.arrays, len(builder.fields)
        self._first = base.index.lengths
        old_sets = list(base.manifest.sets)
        old_buckets = [(bucket["dtype"], tuple(bucket["shape"])) for bucket in base.manifest.buckets]
        self._sets = np.array([old_sets.index(name) for name in builder.sets], np.int64)
        self._buckets = {n: old_buckets.index(form) for form, n in builder.buckets.items() if form in old_buckets}

    def is_same(self, part: Index, a: int, b: int, row: int) -> bool:
        if row < self._first["samples"]:  # a row of the base: the same one, or another
            return row == part.first["samples"] + a
        start = row - self._first["samples"]
        old, new = part.arrays.samples[a:b], self._new.samples[start : start + b - a]
        return (
            all(np.array_equal(old[name], new[name]) for name in _PLAIN)
            and np.array_equal(old["set"], self._sets[new["set"]])
            and np.array_equal(old["bucket"], self._old_buckets(new["bucket"]))
            and np.array_equal(
                self._variants(part.arrays.variants, part.first["variants"], old),
                self._variants(self._new.variants, self._first["variants"], new),
            )
            and self._same_texts(part, old, new)
        )

    def _old_buckets(self, numbers: np.ndarray) -> np.ndarray:
        found, places = np.unique(numbers, return_inverse=True)
        return np.array([self._buckets.get(int(n), NO_BUCKET) for n in found], np.uint32)[places]

    def _variants(self, variants: np.ndarray, first: int, rows: np.ndarray) -> np.ndarray:
        """The numbers of variants and the entries of these rows, which follow each other."""
        start, last = (int(rows["variants"][n]) - first for n in (0, -1))
        return variants[start : last + self._width + int(variants[last : last + self._width].sum(dtype=np.int64))]

    def _same_texts(self, part: Index, old: np.ndarray, new: np.ndarray) -> bool:
        pairs = np.stack(
            [
                np.concatenate([old["source"], captions_of(part.arrays.captions, part.first["captions"], old)]),
                np.concatenate([new["source"], captions_of(self._new.captions, self._first["captions"], new)]),
            ]
        )
        distinct = np.unique(pairs.T.astype("<u4").copy().view("<u8"))
        before, nbytes = self._first["string_ends"], self._first["strings"]
        return all(
            self._index.string(one) == string_of(self._new, other - before, nbytes)
            for one, other in distinct.view("<u4").reshape(-1, 2).tolist()
        )
