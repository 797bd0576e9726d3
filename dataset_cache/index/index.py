"""The index: flat, memory-mapped arrays that locate everything in a generation.

samples      one row per sample: where its variants and captions start, bucket, set, source, sizes, weight
variants     per sample: the number of variants of each field, then their entries
entries      one row per entry: key, layout, field, where its references and leaves start
refs         one row per tensor of an entry: shard and offset, hash of the blob
leaves       packed numbers, strings and bytes, in the form that the entry's layout defines
layouts, strings   texts, each with an array of ends; captions   string numbers
entry_order, ref_order   entries sorted by key, references sorted by hash
"""

import re
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import xxhash

from ...errors import CacheError
from ..format import Layout, StoredFile, read_header
from .index_file import ARRAY_TYPES, MAX_INDEX_HEADER, TENSOR_TYPES, IndexArrays
from .index_rows import (
    ENTRY,
    NO_ROUTE,
    REF,
    SAMPLE,
    EntryRow,
    SampleRow,
    read_entry_row,
    read_sample_row,
    route_row,
)

_P = ParamSpec("_P")
_T = TypeVar("_T")
_U64 = struct.Struct("<Q")
_VIEWED = ("samples", "variants", "entries", "refs", "leaves", "routes", "row_layouts")
UNREADABLE = (struct.error, OverflowError, UnicodeDecodeError)  # raised by rows of a damaged index


class Index:
    """A mapped index. Rows are unpacked on access; every number is checked against the array it points into.

    If it continues other files, `first` has the number of elements that they have of each array: texts, leaves and
    variants are numbered over all files, rows are asked for by their number in this file.
    """

    def __init__(
        self,
        file: StoredFile,
        nbytes: int,
        field_count: int,
        digest: str | None,
        first: Mapping[str, int] | None = None,
    ) -> None:
        """Map the file. With a `digest` the whole file is read and compared with it."""
        if file.size != nbytes:
            raise CacheError(f"{file.name}: has {file.size:,} bytes, {nbytes:,} expected; restore it from a copy")
        header, start = read_header(file, MAX_INDEX_HEADER)
        self._map = file.map()
        self._name = file.name
        if digest is not None:
            self.require(digest)
        self.arrays = IndexArrays(**{name: self._array(header, name, start) for name in ARRAY_TYPES})
        self.sample_count, self.entry_count = len(self.arrays.samples), len(self.arrays.entries)
        # Rows are unpacked from views that end with their array, so struct rejects offsets past the end.
        views = {name: self._view(header[name]["data_offsets"], start) for name in _VIEWED}
        self.leaves, self._samples, self._entries = views["leaves"], views["samples"], views["entries"]
        self._variants, self._refs = views["variants"], views["refs"]
        self._routes, self._row_layouts = views["routes"], views["row_layouts"]
        self._width, self._route_row = field_count, route_row(field_count)
        if len(self._routes) != self.sample_count * self._route_row.size:
            raise CacheError(f"{file.name}: routes do not match {field_count} fields; restore it from a copy")
        self._layouts: dict[int, Layout] = {}
        self.first: Mapping[str, int] = first or dict.fromkeys(ARRAY_TYPES, 0)
        self._first_variant, self._first_leaf = self.first["variants"], self.first["leaves"]

    @property
    def parts(self) -> "tuple[Index, ...]":
        """The files of the index, in order."""
        return (self,)

    @property
    def files(self) -> list[IndexArrays]:
        """The arrays of each file."""
        return [part.arrays for part in self.parts]

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """The samples in order: (first row, number of rows), numbered over all files."""
        return ((0, self.sample_count),)

    @property
    def lengths(self) -> dict[str, int]:
        """The number of elements of each array, in this file and those before it."""
        return {name: first + len(getattr(self.arrays, name)) for name, first in self.first.items()}

    def require(self, digest: str) -> None:
        """Refuse the file if its content does not have this hash."""
        if xxhash.xxh3_128(self._map).hexdigest() != digest:
            raise CacheError(
                f"{self._name}: content does not match its hash; restore it, or remove the cache and save it again"
            )

    def _view(self, offsets: Sequence[int], start: int) -> memoryview:
        return self._map[start + offsets[0] : start + offsets[1]]

    def _array(self, header: dict[str, Any], name: str, start: int) -> np.ndarray:
        dtype = ARRAY_TYPES[name]
        if name not in header:
            raise CacheError(f"the index is damaged: array {name!r} is missing")
        info = header[name]
        begin, end = info["data_offsets"]
        if info["dtype"] != TENSOR_TYPES[name] or (end - begin) % dtype.itemsize:
            raise CacheError(f"the index is damaged: array {name!r} has the wrong type")
        if begin == end:
            return np.empty(0, dtype)
        return np.frombuffer(self._map, dtype, (end - begin) // dtype.itemsize, start + begin)

    def sample_row(self, i: int) -> SampleRow:
        return read_sample_row(self._samples, i)

    def sample_facts(self, i: int, sets: Sequence[str]) -> dict[str, Any]:
        """The values of `SampleFacts`, by name. `sets` has the names of the manifest's sets."""
        row = self.sample_row(i)
        return {
            "captions": self.captions(row),
            "source": self.string(row.source),
            "original_size": row.original_size,
            "crop": row.crop,
            "repeats": row.repeats,
            "weight": row.weight,
            "set": sets[row.set] if row.set < len(sets) else "",
        }

    def captions(self, row: SampleRow, limit: int | None = None) -> tuple[str, ...]:
        """The captions of a sample, the first `limit` of them."""
        first, end = row.captions, row.captions + row.caption_count
        if end > len(self.arrays.captions):
            raise CacheError("the index is damaged: a sample's captions run past the end of their array")
        return tuple(map(self.string, self.arrays.captions[first:end][:limit].tolist()))

    def route(self, i: int) -> tuple[int, ...] | None:
        """(row layout, 0, then location and leaves per field) of a sample; None if it has no route."""
        numbers = self._route_row.unpack_from(self._routes, i * self._route_row.size)
        return None if numbers[0] == NO_ROUTE else numbers

    def row_layout(self, number: int) -> tuple[int, ...]:
        """The layout of each field."""
        return _numbers(self._width).unpack_from(self._row_layouts, number * 4 * self._width)

    def entries_of(self, i: int, field_count: int) -> list[Sequence[int]]:
        """The entries of each field of a sample; several if the field has variants."""
        # `variants` is the first column.
        first = _U64.unpack_from(self._samples, i * SAMPLE.itemsize)[0] - self._first_variant
        counts = _numbers(field_count).unpack_from(self._variants, 4 * first)
        entries = _numbers(sum(counts)).unpack_from(self._variants, 4 * (first + field_count))
        result, position = [], 0
        for count in counts:
            result.append(entries[position : position + count])
            position += count
        return result

    def entry_row(self, entry: int) -> EntryRow:
        return read_entry_row(self._entries, entry)

    def leaves_at(self, position: int) -> tuple[memoryview, int]:
        """The array that has the leaves at this position, and where they are in it."""
        return self.leaves, position

    def leaves_of(self, entry: int) -> bytes:
        """All leaves of an entry: they end where those of the next one start."""
        start = self.entry_row(entry).leaves - self._first_leaf
        last = entry + 1 == self.entry_count
        end = len(self.leaves) if last else self.entry_row(entry + 1).leaves - self._first_leaf
        return bytes(self.leaves[start:end])

    def pieces(self, first: int, end: int) -> Iterator["tuple[Index, int, int]"]:
        """Where these samples are: (file, first row in it, the row behind the last)."""
        yield self, first, end

    def find_sources(self, names: Sequence[str]) -> dict[str, list[int]]:
        """The samples of each of these sources, in order."""
        found = {name: [] for name in names}
        numbers = {number: name for name in names for number in self._string_numbers(name)}
        of_sample = self.sources()
        for i in np.flatnonzero(np.isin(of_sample, list(numbers))).tolist() if numbers else ():
            found[numbers[int(of_sample[i])]].append(i)
        return found

    def sources(self) -> np.ndarray:
        """The number of each sample's source."""
        return self.arrays.samples["source"]

    def _string_numbers(self, text: str) -> list[int]:
        """The numbers of the strings that are this text, over all files."""
        wanted, numbers = text.encode("utf-8", "surrogatepass"), []
        for part in self.parts:
            texts, ends, first = part.arrays.strings, part.arrays.string_ends, part.first["strings"]
            for match in re.finditer(re.escape(wanted), texts.data) if wanted and len(texts) else ():
                number = int(np.searchsorted(ends, match.start() + first, side="right"))
                start = int(ends[number - 1]) - first if number else 0
                if (start, int(ends[number]) - first) == match.span():
                    numbers.append(part.first["string_ends"] + number)
        return numbers

    def sample_rows(self, first: int, count: int) -> np.ndarray:
        """The rows of these samples."""
        return self.arrays.samples[first : first + count]

    def column(self, name: str) -> np.ndarray:
        """A column of `samples` over all samples."""
        return self.arrays.samples[name]

    def variant_counts(self, field: int) -> np.ndarray:
        """The number of variants of a field per sample."""
        return self.variant_counts_of(self.arrays.samples, field)

    def variant_counts_of(self, rows: np.ndarray, field: int) -> np.ndarray:
        places = rows["variants"] - np.uint64(self._first_variant) + np.uint64(field)
        if (places >= len(self.arrays.variants)).any():
            raise CacheError("the index is damaged: a sample's variants run past the end of their array")
        return self.arrays.variants[places.astype(np.int64)]

    def locations(self, first: int, count: int) -> tuple[int, ...]:
        return _location_rows(count).unpack_from(self._refs, first * REF.itemsize)

    def hash_of(self, ref: int) -> bytes:
        at = ref * REF.itemsize + 8
        return self._refs[at : at + 16].tobytes()

    def key_of(self, entry: int) -> bytes:
        at = entry * ENTRY.itemsize
        return self._entries[at : at + 16].tobytes()

    def find_entry(self, key: bytes) -> int | None:
        return self._find(key, self.arrays.entry_order, self.key_of, self.entry_count)

    def find_ref(self, digest: bytes) -> int | None:
        """A reference to a blob with this hash."""
        return self._find(digest, self.arrays.ref_order, self.hash_of, len(self.arrays.refs))

    @staticmethod
    def _find(wanted: bytes, order: np.ndarray, value_of: Any, count: int) -> int | None:
        def value_at(position: int) -> bytes:
            return value_of(min(int(order[position]), count - 1))

        position = bisect_left(range(len(order)), wanted, key=value_at)
        if position < len(order) and value_at(position) == wanted:
            return int(order[position])
        return None

    def layout(self, number: int) -> Layout:
        found = self._layouts.get(number)
        if found is None:
            found = self._layouts[number] = Layout(self.layout_text(number))
        return found

    def layout_text(self, number: int) -> str:
        arrays, first = self.arrays, self.first["layouts"]
        return _text("layout", arrays.layouts, arrays.layout_ends, number, first).decode()

    def string(self, number: int) -> str:
        return string_of(self.arrays, number, self.first["strings"])


def string_of(arrays: IndexArrays, number: int, first: int = 0) -> str:
    """A source or caption. `first` bytes of texts are in the files before."""
    return _text("string", arrays.strings, arrays.string_ends, number, first).decode("utf-8", "surrogatepass")


def _text(what: str, texts: np.ndarray, ends: np.ndarray, number: int, first: int) -> bytes:
    if number >= len(ends):
        raise CacheError(f"the index is damaged: {what} {number} of {len(ends)}")
    start = int(ends[number - 1]) - first if number else 0
    end = int(ends[number]) - first
    if not start <= end <= len(texts):
        raise CacheError(f"the index is damaged: {what} {number} is at {start}–{end} of {len(texts)}")
    return texts[start:end].tobytes()


def guarded(read: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function that reads the index: struct errors inside are reported as a damaged index."""

    @wraps(read)
    def reading(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return read(*args, **kwargs)
        except UNREADABLE as error:
            raise damage(error) from error

    return reading


def damage(error: Exception) -> CacheError:
    return CacheError(
        f'the index is damaged ({error}); run "streamcache verify"; restore the cache, or remove and save it again'
    )


@lru_cache(256)
def _numbers(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}I")


@lru_cache(256)
def _location_rows(count: int) -> struct.Struct:
    return struct.Struct("<" + "Q16x" * count)
