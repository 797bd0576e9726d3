"""The arrays of several indexes as one: numbers are shifted or translated, entries with the same key become one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from .index_arrays import concatenated, pack_variants, prune, unpack_variants
from .index_file import IndexArrays, sort_order
from .index_rows import NO_BUCKET, OFFSET_BITS

_T = TypeVar("_T")
_OFFSETS = np.uint64((1 << OFFSET_BITS) - 1)
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Translation:
    """Numbers in the merged index of an index's own fields, sets, buckets and shards, in its order."""

    fields: Sequence[int]
    sets: Sequence[int]
    buckets: Sequence[int]
    shards: Sequence[int]


def merge_arrays(sources: Sequence[tuple[IndexArrays, Translation]], width: int) -> tuple[IndexArrays, np.ndarray]:
    """The arrays in one, with `width` fields, and the number of each sample's source."""
    layouts: dict[bytes, int] = {}
    joined = concatenated([_shifted(sources, number, layouts) for number in range(len(sources))])
    columns = [_widened(arrays, translation.fields, width) for arrays, translation in sources]
    firsts = _firsts([len(arrays.entries) for arrays, _ in sources])
    flat = np.concatenate([flat.astype(np.int64) + first for (_, flat), first in zip(columns, firsts, strict=True)])
    stays, chosen = _first_of_each_key(joined)
    samples = joined.samples.copy()
    samples["variants"], variants = pack_variants(np.concatenate([counts for counts, _ in columns]), chosen[flat])
    texts = list(layouts)
    joined = replace(
        joined,
        samples=samples,
        variants=variants,
        layouts=np.frombuffer(b"".join(texts), "u1"),
        layout_ends=np.cumsum([len(text) for text in texts], dtype="<u8") if texts else np.empty(0, "<u8"),
    )
    source_of = np.repeat(np.arange(len(sources)), [len(arrays.samples) for arrays, _ in sources])
    return prune(joined, width, np.ones(len(samples), bool), stays), source_of


def alike_samples(arrays: IndexArrays, width: int, source_of: np.ndarray) -> np.ndarray:
    """The samples that may be the same as one of another source: they have the same entries."""
    counts, flat = unpack_variants(arrays, width)
    lengths = counts.sum(1, dtype=np.int64)
    place = np.arange(len(flat)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    with np.errstate(over="ignore"):
        mixed = (flat.astype(np.uint64) + np.uint64(1)) * _MIX ^ (place.astype(np.uint64) + np.uint64(7)) * _MIX
        mixed = (mixed ^ mixed >> np.uint64(29)) * _MIX
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
        ends = np.cumsum(lengths)
        marks = sums[ends] - sums[ends - lengths]
    _, groups = np.unique(marks, return_inverse=True)
    several = np.zeros(int(groups.max(initial=-1)) + 1, bool)
    first = np.full(len(several), len(source_of), np.int64)
    np.minimum.at(first, groups, source_of)
    several[groups[source_of > first[groups]]] = True
    return np.flatnonzero(several[groups])


def _shifted(sources: Sequence[tuple[IndexArrays, Translation]], number: int, layouts: dict[bytes, int]) -> IndexArrays:
    """The arrays of a source as they continue those before it. Layouts are collected in `layouts`."""
    arrays, translation = sources[number]
    before = [arrays for arrays, _ in sources[:number]]
    first = {name: np.uint64(sum(len(getattr(each, name)) for each in before)) for name in _COUNTED}
    samples, entries, refs = arrays.samples.copy(), arrays.entries.copy(), arrays.refs.copy()
    samples["captions"] += first["captions"]
    samples["source"] += np.uint32(first["string_ends"])
    samples["set"] = np.asarray(translation.sets, "<u4")[samples["set"]] if len(samples) else samples["set"]
    has_bucket = samples["bucket"] != NO_BUCKET
    samples["bucket"][has_bucket] = np.asarray(translation.buckets, "<u4")[samples["bucket"][has_bucket]]
    entries["refs"] += first["refs"]
    entries["leaves"] += first["leaves"]
    if len(entries):
        entries["layout"] = np.array([layouts.setdefault(text, len(layouts)) for text in _texts(arrays)], "<u4")[
            entries["layout"]
        ]
        entries["field"] = np.asarray(translation.fields, "<u4")[entries["field"]]
    if len(refs):
        shards = np.asarray(translation.shards, np.uint64)[
            (refs["location"] >> np.uint64(OFFSET_BITS)).astype(np.int64)
        ]
        refs["location"] = shards << np.uint64(OFFSET_BITS) | refs["location"] & _OFFSETS
    return replace(
        arrays,
        samples=samples,
        entries=entries,
        refs=refs,
        captions=arrays.captions + np.uint32(first["string_ends"]),
        string_ends=arrays.string_ends + first["strings"],
    )


_COUNTED = ("refs", "leaves", "strings", "string_ends", "captions")


def _texts(arrays: IndexArrays) -> list[bytes]:
    ends = arrays.layout_ends.tolist()
    return [arrays.layouts[a:b].tobytes() for a, b in zip([0, *ends], ends, strict=False)]


def _widened(arrays: IndexArrays, fields: Sequence[int], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts and entries of all samples with the fields in their new order."""
    counts, flat = unpack_variants(arrays, len(fields))
    wide = np.zeros((len(counts), width), "<u4")
    wide[:, list(fields)] = counts
    if list(fields) == sorted(fields):
        return wide, flat
    cells = np.repeat(np.arange(counts.size), counts.reshape(-1))
    rows, own = np.divmod(cells, max(1, len(fields)))
    return wide, flat[np.argsort(rows * width + np.asarray(fields)[own], kind="stable")]


def _first_of_each_key(arrays: IndexArrays) -> tuple[np.ndarray, np.ndarray]:
    """A mask of the first entry of each key, and for every entry the first one with its key."""
    keys = np.ascontiguousarray(arrays.entries["key"])
    order = sort_order(keys).astype(np.int64)  # stable: the first of equal keys comes first
    halves = keys.view("<u8").reshape(-1, 2)[order]
    starts = np.ones(len(order), bool)
    starts[1:] = (halves[1:] != halves[:-1]).any(1)
    chosen = np.empty(len(order), np.int64)
    chosen[order] = order[starts][np.cumsum(starts) - 1] if len(order) else order
    return chosen == np.arange(len(order)), chosen


def _firsts(counts: Sequence[int]) -> list[int]:
    ends = np.cumsum(counts).tolist()
    return [end - count for end, count in zip(ends, counts, strict=True)]


def numbered(groups: Iterable[Iterable[_T]]) -> tuple[list[_T], list[list[int]]]:
    """All distinct values in the order of their first occurrence, and the numbers of each group's values."""
    numbers: dict[_T, int] = {}
    found = [[numbers.setdefault(value, len(numbers)) for value in group] for group in groups]
    return list(numbers), found
