"""An index of several files, read as one; and opening the index of a generation, whatever it consists of."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import accumulate, pairwise

import numpy as np

from ...errors import CacheError
from ..format import IndexSegment, Layout, Manifest, Place, Storage, StoredFile, storage_at
from .index import Index
from .index_arrays import concatenated, entries_of_rows, take_samples
from .index_file import ARRAY_TYPES, IndexArrays
from .index_rows import COLUMNS, SAMPLE, EntryRow, SampleRow

_CHECKED_INDEX_BYTES = 16 << 20  # smaller files are compared with their hash on every open: 1–2 ms

_CHUNK = 1 << 16  # samples

Runs = Sequence[tuple[int, int]]


class JoinedIndex(Index):
    """Rows of all kinds are numbered over all files, in order. The samples are `runs` of rows."""

    def __init__(self, parts: Sequence[Index], runs: Runs, field_count: int) -> None:
        self._parts, self._width = tuple(parts), field_count
        self._starts = {name: [part.first[name] for part in parts] for name in ARRAY_TYPES}
        self.first = parts[0].first
        rows = self.lengths["samples"]
        self._runs = tuple((first, count) for first, count in runs if count) or (() if runs else ((0, rows),))
        if any(first + count > rows for first, count in self._runs):
            raise CacheError(f"the index is damaged: it has {rows:,} rows of samples, and its runs go on behind them")
        if repeat_rows(self._runs):
            raise CacheError("the index is damaged: its runs name a row of samples more than once")
        self._ends = list(accumulate(count for _, count in self._runs))
        self._shifts = [first + count - end for (first, count), end in zip(self._runs, self._ends)]
        self.sample_count, self.entry_count = self._ends[-1] if self._ends else 0, self.lengths["entries"]
        self._layouts: dict[int, Layout] = {}

    @property
    def parts(self) -> tuple[Index, ...]:
        return self._parts

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        return self._runs

    @property
    def lengths(self) -> dict[str, int]:
        return self._parts[-1].lengths

    @cached_property
    def arrays(self) -> IndexArrays:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All arrays in memory, as they would be in one file. Orders and routes are missing."""
        whole = concatenated([part.arrays for part in self._parts])
        if self._runs == ((0, len(whole.samples)),):
            return whole
        rows = np.concatenate([np.arange(first, first + count) for first, count in self._runs] or [np.empty(0, int)])
        return take_samples(whole, self._width, rows)

    @property
    def leaves(self) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """There is no one array of leaves; `leaves_at` finds the right one."""

    def sample_row(self, i: int) -> SampleRow:
        part, row = self._sample(i)
        return part.sample_row(row)

    def captions(self, row: SampleRow, limit: int | None = None) -> tuple[str, ...]:
        part, first = self._part_with("captions", row.captions)
        numbers = part.arrays.captions[first : first + row.caption_count]
        if len(numbers) < row.caption_count:
            raise CacheError("the index is damaged: a sample's captions run past the end of their array")
        return tuple(map(self.string, numbers[:limit].tolist()))

    def route(self, i: int) -> tuple[int, ...] | None:
        part, row = self._sample(i)
        return part.route(row)

    def row_layout(self, number: int) -> tuple[int, ...]:
        part, first = self._part_with("row_layouts", number * self._width)
        return part.row_layout(first // self._width)

    def entries_of(self, i: int, field_count: int) -> list[Sequence[int]]:
        part, row = self._sample(i)
        return part.entries_of(row, field_count)

    def entry_row(self, entry: int) -> EntryRow:
        part, row = self._part_with("entries", entry)
        return part.entry_row(row)

    def leaves_at(self, position: int) -> tuple[memoryview, int]:
        part, start = self._part_with("leaves", position)
        return part.leaves, start

    def leaves_of(self, entry: int) -> bytes:
        part, row = self._part_with("entries", entry)
        return part.leaves_of(row)

    def locations(self, first: int, count: int) -> tuple[int, ...]:
        part, row = self._part_with("refs", first)
        return part.locations(row, count)

    def hash_of(self, ref: int) -> bytes:
        part, row = self._part_with("refs", ref)
        return part.hash_of(row)

    def key_of(self, entry: int) -> bytes:
        part, row = self._part_with("entries", entry)
        return part.key_of(row)

    def find_entry(self, key: bytes) -> int | None:
        found = ((part, part.find_entry(key)) for part in self._parts)
        return next((part.first["entries"] + row for part, row in found if row is not None), None)

    def find_ref(self, digest: bytes) -> int | None:
        found = ((part, part.find_ref(digest)) for part in self._parts)
        return next((part.first["refs"] + row for part, row in found if row is not None), None)

    def layout_text(self, number: int) -> str:
        part, row = self._part_with("layout_ends", number)
        return part.layout_text(row)

    def string(self, number: int) -> str:
        part, row = self._part_with("string_ends", number)
        return part.string(row)

    def sample_rows(self, first: int, count: int) -> np.ndarray:
        end = min(first + count, self.sample_count)
        rows = [part.arrays.samples[a:b] for part, a, b in self.pieces(first, end)]
        return np.concatenate(rows or [np.empty(0, SAMPLE)])

    def column(self, name: str) -> np.ndarray:
        assert name in COLUMNS, "other columns have numbers that mean something only in their file"
        found = [part.arrays.samples[name][a:b] for part, a, b in self.pieces(0, self.sample_count)]
        return np.concatenate(found or [np.empty(0, SAMPLE)[name]])

    def sources(self) -> np.ndarray:
        found = [part.arrays.samples["source"][a:b] for part, a, b in self.pieces(0, self.sample_count)]
        return np.concatenate(found or [np.empty(0, "<u4")])

    def variant_counts(self, field: int) -> np.ndarray:
        pieces = self.pieces(0, self.sample_count)
        found = [part.variant_counts_of(part.arrays.samples[a:b], field) for part, a, b in pieces]
        return np.concatenate(found or [np.empty(0, "<u4")])

    def pieces(self, first: int, end: int) -> Iterator[tuple[Index, int, int]]:
        """Where these samples are: (part, first row in it, the row behind the last)."""
        while first < end:
            number = bisect_right(self._ends, first)
            part, row = self._sample(first)
            count = min(end, self._ends[number]) - first
            count = min(count, part.sample_count - row)
            yield part, row, row + count
            first += count

    def _sample(self, i: int) -> tuple[Index, int]:
        number = bisect_right(self._ends, i)
        if not 0 <= i < self.sample_count:
            raise CacheError(f"sample {i} does not exist: the dataset has {self.sample_count}")
        return self._part_with("samples", i + self._shifts[number])

    def _part_with(self, name: str, number: int) -> tuple[Index, int]:
        """The part with this element of an array, and its number there."""
        starts = self._starts[name]
        n = bisect_right(starts, number) - 1
        return self._parts[n], number - starts[n]


def repeat_rows(runs: Runs) -> bool:
    """Whether a row is in more than one of these runs. The format excludes that: few bytes would make many samples."""
    return any(first < one + count for (one, count), (first, _) in pairwise(sorted(run for run in runs if run[1])))


def count_used(index: Index, field_count: int, named: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """A mask of the entries that a sample or a name uses, and how many of them each field has."""
    used = np.zeros(index.entry_count, bool)
    used[list(named)] = True
    for first in range(0, index.sample_count, _CHUNK):
        for part, a, b in index.pieces(first, min(first + _CHUNK, index.sample_count)):
            rows, variants = part.arrays.samples[a:b], part.arrays.variants
            used[entries_of_rows(rows, variants, part.first["variants"], field_count)] = True
    counts = np.zeros(field_count, np.int64)
    for part in index.parts:
        own = used[part.first["entries"] :][: len(part.arrays.entries)]
        counts += np.bincount(part.arrays.entries["field"][own], minlength=field_count)[:field_count]
    return used, counts


def open_index(place: Place, manifest: Manifest, check: bool | None = None) -> Index:
    """The index of a published generation. `check` compares it with its hash, by default only files that are small."""
    storage, parts = storage_at(place), list[Index]()
    files = _open_files(storage, manifest)
    for segment in manifest.index_files:
        first = parts[-1].lengths if parts else None
        digest = segment.hash if _is_checked(segment, check) else None
        parts.append(Index(files[segment.file], segment.bytes, len(manifest.fields), digest, first))
    index = JoinedIndex(parts, manifest.runs, len(manifest.fields)) if len(parts) > 1 or manifest.runs else parts[0]
    if index.sample_count != manifest.counts.get("samples"):
        expected = manifest.counts.get("samples")
        raise CacheError(f"{storage.path}: the index has {index.sample_count} samples, the manifest says {expected}")
    return index


def _open_files(storage: Storage, manifest: Manifest) -> dict[str, StoredFile]:
    files: dict[str, StoredFile] = {}

    def open_one(segment: IndexSegment) -> None:
        files[segment.file] = storage.open_to_map(segment.file, manifest.id, segment.bytes, segment.hash)

    storage.at_once([partial(open_one, segment) for segment in manifest.index_files])
    return files


def _is_checked(segment: IndexSegment, check: bool | None) -> bool:
    return segment.bytes <= _CHECKED_INDEX_BYTES if check is None else check
