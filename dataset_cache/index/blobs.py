"""The table of distinct blobs in an index: location, hash, type, and the references that lead to each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...errors import CacheError
from ..format import Blob, Layout, TensorSpec
from .index_file import IndexArrays
from .index_rows import OFFSET_BITS

_OFFSET_MASK = np.uint64((1 << OFFSET_BITS) - 1)


@dataclass(frozen=True)
class BlobTable:
    """One row per distinct blob, sorted by shard and offset."""

    locations: np.ndarray
    hashes: np.ndarray  # [rows] of 16 bytes
    spec_of_row: np.ndarray  # numbers into `specs`
    specs: tuple[TensorSpec, ...]
    row_of_ref: np.ndarray  # per reference: the row of its blob
    entry_of_ref: np.ndarray  # per reference: the entry that it belongs to

    def __len__(self) -> int:
        return len(self.locations)

    @cached_property
    def shards(self) -> np.ndarray:
        return (self.locations >> np.uint64(OFFSET_BITS)).astype(np.int64)

    @cached_property
    def offsets(self) -> np.ndarray:
        return (self.locations & _OFFSET_MASK).astype(np.int64)

    @cached_property
    def nbytes(self) -> np.ndarray:
        sizes = np.array([spec.nbytes for spec in self.specs], np.int64)
        return sizes[self.spec_of_row] if len(self.spec_of_row) else np.empty(0, np.int64)

    def rows_of(self, shard: int) -> np.ndarray:
        """The rows of one shard, sorted by offset."""
        edges = np.array([shard << OFFSET_BITS, (shard + 1) << OFFSET_BITS], np.uint64)
        first, last = np.searchsorted(self.locations, edges)
        return np.arange(first, last)

    def blobs(self, rows: Sequence[int] | np.ndarray) -> Iterator[Blob]:
        for row in rows:
            spec = self.specs[self.spec_of_row[row]]
            yield Blob(self.hashes[row].tobytes(), spec.dtype, spec.shape, int(self.locations[row] & _OFFSET_MASK))

    def refs_to(self, rows: np.ndarray) -> np.ndarray:
        """A mask of the references to one of these rows."""
        wanted = np.zeros(len(self), bool)
        wanted[rows] = True
        return wanted[self.row_of_ref]

    def entries_using(self, rows: np.ndarray, entry_count: int) -> np.ndarray:
        """A mask of the entries that need one of these rows."""
        using = np.zeros(entry_count, bool)
        using[self.entry_of_ref[self.refs_to(rows)]] = True
        return using


def layout_texts(arrays: IndexArrays) -> list[str]:
    ends = arrays.layout_ends.tolist()
    return [arrays.layouts[a:b].tobytes().decode() for a, b in zip([0, *ends], ends)]


def blob_table(arrays: IndexArrays) -> BlobTable:
    """The distinct blobs of an index whose rows were checked to be in order."""
    layouts = [Layout(text).specs for text in layout_texts(arrays)]
    specs, first_spec = number_specs(layouts)
    counts = np.array([len(layout) for layout in layouts], np.int64)
    of_entry = arrays.entries["layout"].astype(np.int64)
    entry_of_ref = np.repeat(np.arange(len(of_entry)), counts[of_entry]) if len(of_entry) else np.empty(0, np.int64)
    if len(entry_of_ref) != len(arrays.refs):
        raise CacheError(f"the index is damaged: {len(arrays.refs)} references, {len(entry_of_ref)} expected")
    slot = np.arange(len(arrays.refs)) - arrays.entries["refs"].astype(np.int64)[entry_of_ref]
    starts = np.array([at for at, _ in first_spec], np.int64)
    flat = np.array([number for _, numbers in first_spec for number in numbers], np.int64)
    spec_of_ref = flat[starts[of_entry[entry_of_ref]] + slot] if len(flat) else np.empty(0, np.int64)
    locations, hashes = np.ascontiguousarray(arrays.refs["location"]), np.ascontiguousarray(arrays.refs["hash"])
    return distinct_blobs(locations, hashes, spec_of_ref, entry_of_ref, tuple(specs))


def number_specs(layouts: Sequence[Sequence[TensorSpec]]) -> tuple[dict[TensorSpec, int], list[tuple[int, list[int]]]]:
    """A number for every distinct spec; per layout, the start of its numbers among all of them, and the numbers."""
    numbers: dict[TensorSpec, int] = {}
    result, at = [], 0
    for layout in layouts:
        result.append((at, [numbers.setdefault(spec, len(numbers)) for spec in layout]))
        at += len(layout)
    return numbers, result


def distinct_blobs(
    locations: np.ndarray,
    hashes: np.ndarray,
    spec_of_ref: np.ndarray,
    entry_of_ref: np.ndarray,
    specs: tuple[TensorSpec, ...],
) -> BlobTable:
    """The table of the blobs of these references."""
    if (locations[1:] > locations[:-1]).all():  # as a writer leaves them if nothing is shared
        return BlobTable(locations, hashes, spec_of_ref, specs, np.arange(len(locations)), entry_of_ref)
    halves = hashes.view("<u8").reshape(-1, 2)
    # An empty tensor may have the offset of the next blob: the hash distinguishes the two.
    order = np.lexsort((spec_of_ref, halves[:, 1], halves[:, 0], locations))
    columns = np.stack([locations[order], halves[order, 0], halves[order, 1], spec_of_ref[order].astype("<u8")])
    is_first = np.ones(len(order), bool)
    is_first[1:] = (columns[:, 1:] != columns[:, :-1]).any(0)
    row_of_ref = np.empty(len(order), np.int64)
    row_of_ref[order] = np.cumsum(is_first) - 1
    first = order[is_first]
    return BlobTable(locations[first], hashes[first], spec_of_ref[first], specs, row_of_ref, entry_of_ref)
