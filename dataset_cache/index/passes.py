"""Passes over an index in chunks: memory stays small however many rows there are, and in however many files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import CacheError
from ..format import Layout, TensorSpec
from .blobs import BlobTable, distinct_blobs, number_specs
from .index import Index
from .index_arrays import entries_of_rows, gather, make_routes, starts_of
from .index_file import IndexArrays
from .index_rows import OFFSET_BITS

CHUNK = 1 << 16  # rows
_MOST_REFS = 1 << 18  # in a table of blobs, unless one shard has more
_MOST_KEYS = 1 << 17  # sorted at once


class Rows:
    """One array, or a column of it, over all files of an index."""

    def __init__(self, files: Sequence[IndexArrays], name: str, column: str | None = None) -> None:
        arrays = [getattr(file, name) for file in files]
        self._pieces: list[np.ndarray] = [array[column] for array in arrays] if column else arrays
        self._starts = starts_of(self._pieces)

    def __len__(self) -> int:
        return int(self._starts[-1]) + len(self._pieces[-1])

    def chunks(self) -> Iterator[np.ndarray]:
        for piece in self._pieces:
            for at in range(0, len(piece), CHUNK):
                yield piece[at : at + CHUNK]

    def take(self, numbers: np.ndarray) -> np.ndarray:
        return gather(self._pieces, self._starts, numbers)


@dataclass(frozen=True)
class EntryChunk:
    """Some consecutive entries of a file, and their references; per reference its entry and a number of its spec."""

    entries: np.ndarray
    refs: np.ndarray
    entry_of_ref: np.ndarray
    spec_of_ref: np.ndarray


class EntryPass:
    """All entries with their references, in chunks. The entries were checked to be in order."""

    def __init__(self, index: Index) -> None:
        layouts = [index.layout(n).specs for n in range(index.lengths["layout_ends"])]
        specs, firsts = number_specs(layouts)
        self._index, self.specs = index, tuple[TensorSpec, ...](specs)
        self._counts = np.array([len(layout) for layout in layouts], np.int64)
        self._first_spec = np.array([at for at, _ in firsts], np.int64)
        self._spec_numbers = np.array([number for _, numbers in firsts for number in numbers], np.int64)

    def __iter__(self) -> Iterator[EntryChunk]:
        for part in self._index.parts:
            at = 0
            for first in range(0, len(part.arrays.entries), CHUNK):
                entries = part.arrays.entries[first : first + CHUNK]
                layouts = entries["layout"].astype(np.int64)
                counts = self._counts[layouts]
                own = np.repeat(np.arange(len(entries)), counts)
                refs = part.arrays.refs[at : at + len(own)]
                if len(refs) != len(own):
                    raise CacheError(f"the index is damaged: {len(refs)} references, {len(own)} expected")
                slots = np.arange(len(own)) - np.repeat(np.cumsum(counts) - counts, counts)
                specs = self._spec_numbers[self._first_spec[layouts[own]] + slots] if len(own) else own
                yield EntryChunk(entries, refs, own + part.first["entries"] + first, specs)
                at += len(own)


def blob_tables(index: Index, shards: int) -> Iterator[tuple[range, BlobTable]]:
    """The blobs of all shards, a few shards at a time: which, and their table."""
    entries = EntryPass(index)
    counts, edges = np.zeros(shards, np.int64), list[tuple[int, int]]()
    for chunk in entries:
        numbers = shards_of(chunk.refs)
        counts += np.bincount(numbers, minlength=shards)
        edges.append((int(numbers.min(initial=shards)), int(numbers.max(initial=-1))))
    for group in _groups(counts):
        found = [
            _of_shards(chunk, group)
            for chunk, (first, last) in zip(entries, edges, strict=True)
            if first < group.stop and last >= group.start
        ]
        locations, hashes, specs, owners = (np.concatenate(column) for column in zip(_NONE, *found, strict=True))
        yield group, distinct_blobs(locations, hashes, specs, owners, entries.specs)


def shards_of(refs: np.ndarray) -> np.ndarray:
    return (refs["location"] >> np.uint64(OFFSET_BITS)).astype(np.int64)


def _groups(counts: np.ndarray) -> Iterator[range]:
    """Shards that follow each other, so many that a table of them is not large."""
    first, total = 0, 0
    for number, count in enumerate(counts.tolist()):
        if total and total + count > _MOST_REFS:
            yield range(first, number)
            first, total = number, 0
        total += count
    if first < len(counts):
        yield range(first, len(counts))


def _of_shards(chunk: EntryChunk, group: range) -> tuple[np.ndarray, ...]:
    """Locations, hashes, specs and entries of the references to these shards."""
    numbers = shards_of(chunk.refs)
    own = np.flatnonzero((numbers >= group.start) & (numbers < group.stop))
    refs = chunk.refs[own]
    return refs["location"], refs["hash"], chunk.spec_of_ref[own], chunk.entry_of_ref[own]


_NONE = (np.empty(0, "<u8"), np.empty(0, "V16"), np.empty(0, np.int64), np.empty(0, np.int64))


def listed_samples(index: Index) -> Iterator[tuple[Index, np.ndarray]]:
    """The rows of the samples in order: (file, some rows that follow each other in it)."""
    for first in range(0, index.sample_count, CHUNK):
        for part, a, b in index.pieces(first, min(first + CHUNK, index.sample_count)):
            yield part, part.arrays.samples[a:b]


def sample_chunks(file: IndexArrays) -> Iterator[np.ndarray]:
    """All rows of samples in a file."""
    return (file.samples[at : at + CHUNK] for at in range(0, len(file.samples), CHUNK))


def variants_of(rows: np.ndarray, variants: np.ndarray, first: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of variants [rows, fields] of rows that follow each other in a file, and the entries in order.

    Their numbers into `variants` start at `first`.
    """
    places = rows["variants"].astype(np.int64) - first
    return variants[places[:, None] + np.arange(width)], entries_of_rows(rows, variants, first, width)


def captions_of(captions: np.ndarray, first: int, rows: np.ndarray) -> np.ndarray:
    """The captions of these samples in order. Their numbers into `captions` start at `first`."""
    counts = rows["caption_count"].astype(np.int64)
    starts = rows["captions"].astype(np.int64) - first - (np.cumsum(counts) - counts)
    return captions[np.repeat(starts, counts) + np.arange(int(counts.sum()))]


def derived_routes(
    files: Sequence[IndexArrays], number: int, layouts: Sequence[Layout], width: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What `make_routes` finds for each chunk of the rows of a file, by its number."""
    entry_rows, locations = Rows(files, "entries"), Rows(files, "refs", "location")
    tensors = np.array([len(layout.specs) for layout in layouts], np.int64)
    for counts, flat in variant_chunks(files, number, width):
        used, chosen = np.unique(flat, return_inverse=True)
        entries = entry_rows.take(used)
        lengths = tensors[entries["layout"].astype(np.int64)]
        first = np.cumsum(lengths) - lengths
        numbers = np.arange(int(lengths.sum())) + np.repeat(entries["refs"].astype(np.int64) - first, lengths)
        entries["refs"] = first
        yield make_routes(counts, chosen.astype(np.int64), entries, locations.take(numbers), layouts)


def variant_chunks(files: Sequence[IndexArrays], number: int, width: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What `variants_of` finds for each chunk of the rows of a file, by its number."""
    first = sum(len(file.variants) for file in files[:number])
    return (variants_of(rows, files[number].variants, first, width) for rows in sample_chunks(files[number]))


def partitions(keys: Rows) -> Iterator[np.ndarray]:
    """16-byte values in order, in parts, as pairs of numbers."""
    return (halves[order] for halves, _, order in _sorted_parts(keys))


def sort_orders(keys: Rows) -> Iterator[np.ndarray]:
    """What `sort_order` finds, in parts."""
    return (numbers[order] for _, numbers, order in _sorted_parts(keys))


def _sorted_parts(keys: Rows) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """16-byte values in parts by their first byte: as pairs of numbers, which ones they are, and their order."""
    parts = max(1, min(256, len(keys) // _MOST_KEYS))
    edges = np.arange(parts + 1) * 256 // parts
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        found, at = [(np.empty((0, 2), ">u8"), np.empty(0, "<u4"))], 0
        for chunk in keys.chunks():
            found.append(_between(chunk, low, high, at))
            at += len(chunk)
        halves, numbers = (np.concatenate(column) for column in zip(*found, strict=True))
        yield halves, numbers, np.lexsort((halves[:, 1], halves[:, 0]))


def _between(keys: np.ndarray, low: int, high: int, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Those of these keys whose first byte is in a range, and their numbers, which start at `first`."""
    values = np.ascontiguousarray(keys).view("u1").reshape(-1, 16)
    chosen = np.flatnonzero((values[:, 0] >= low) & (values[:, 0] < high))
    return values[chosen].view(">u8"), (chosen + first).astype("<u4")


def has_wrong_orders(part: Index) -> Sequence[str]:
    """The names of the arrays of a file that should be its order by key or hash, and are not."""
    arrays = part.arrays
    orders = (
        ("entry_order", arrays.entry_order, arrays.entries["key"]),
        ("ref_order", arrays.ref_order, arrays.refs["hash"]),
    )
    return [name for name, order, keys in orders if not _is_order(order, keys)]


def _is_order(order: np.ndarray, keys: np.ndarray) -> bool:
    """Whether these are the numbers of all keys in ascending order; equal keys in the order of their numbers."""
    if len(order) != len(keys):
        return False
    for at in range(0, len(order), CHUNK):
        numbers = order[at : at + CHUNK + 1]
        if int(numbers.max()) >= len(keys):
            return False
        halves = np.ascontiguousarray(keys[numbers]).view(">u8").reshape(-1, 2)
        columns = [halves[:, 0], halves[:, 1], numbers]
        above, equal = np.zeros(len(numbers) - 1, bool), np.ones(len(numbers) - 1, bool)
        for column in columns:
            above |= equal & (column[1:] > column[:-1])
            equal &= column[1:] == column[:-1]
        if not above.all():
            return False
    return True
