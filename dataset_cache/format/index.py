"""The index: flat, memory-mapped arrays that locate everything in a generation.

samples      one row per sample: where its variants and captions start, bucket, set, source, sizes, weight
variants     per sample: the number of variants of each field, then their entries
entries      one row per entry: key, layout, field, where its references and leaves start
refs         one row per tensor of an entry: shard and offset, hash of the blob
leaves       packed numbers, strings and bytes, in the form that the entry's layout defines
layouts, strings   texts, each with an array of ends; captions   string numbers
entry_order, ref_order   entries sorted by key, references sorted by hash
"""

import json
import struct
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import xxhash

from ...errors import CacheError
from ..stored_file import MemoryFile, StoredFile
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
from .manifest import Manifest
from .shard import ALIGNMENT, PAD, read_header
from .skeleton import Layout
from .storage import Place, Storage, storage_at

_CHECKED_INDEX_BYTES = 16 << 20  # smaller indexes are compared with their hash on every open: 1–2 ms

_P = ParamSpec("_P")
_T = TypeVar("_T")
_U64 = struct.Struct("<Q")
_MAX_HEADER = 1 << 20
UNREADABLE = (struct.error, OverflowError, UnicodeDecodeError)  # raised by rows of a damaged index


@dataclass(frozen=True)
class IndexArrays:
    """All arrays of an index, in memory or mapped. Text arrays are bytes; `*_ends` has the end of each text.

    The last four repeat the others in forms that are faster to use; publishing derives them.
    """

    samples: np.ndarray
    variants: np.ndarray
    entries: np.ndarray
    refs: np.ndarray
    leaves: np.ndarray
    layouts: np.ndarray
    layout_ends: np.ndarray
    strings: np.ndarray
    string_ends: np.ndarray
    captions: np.ndarray
    row_layouts: np.ndarray = field(default_factory=lambda: np.empty(0, "<u4"))
    routes: np.ndarray = field(default_factory=lambda: np.empty(0, "u1"))
    entry_order: np.ndarray = field(default_factory=lambda: np.empty(0, "<u4"))
    ref_order: np.ndarray = field(default_factory=lambda: np.empty(0, "<u4"))


ARRAY_TYPES: dict[str, np.dtype] = {
    "samples": SAMPLE,
    "variants": np.dtype("<u4"),
    "entries": ENTRY,
    "refs": REF,
    "leaves": np.dtype("u1"),
    "layouts": np.dtype("u1"),
    "layout_ends": np.dtype("<u8"),
    "strings": np.dtype("u1"),
    "string_ends": np.dtype("<u8"),
    "captions": np.dtype("<u4"),
    "row_layouts": np.dtype("<u4"),
    "routes": np.dtype("u1"),
    "entry_order": np.dtype("<u4"),
    "ref_order": np.dtype("<u4"),
}
_TENSOR_TYPES = {"<u4": "U32", "<u8": "U64", "|u1": "U8"}


def sort_order(keys: np.ndarray) -> np.ndarray:
    """The sort order of 16-byte values, compared as bytes."""
    halves = np.ascontiguousarray(keys).view(">u8").reshape(-1, 2)
    return np.lexsort((halves[:, 1], halves[:, 0])).astype("<u4")


def write_index(storage: Storage, name: str, arrays: IndexArrays) -> tuple[int, str]:
    """Write the arrays as a safetensors file. Returns its size and hash; the caller makes its name durable."""
    digest = xxhash.xxh3_128()
    with storage.create(name) as file:
        for piece in _pieces(arrays):
            digest.update(piece)
            file.write(piece)
        size = file.tell()
    return size, digest.hexdigest()


def index_size(arrays: IndexArrays) -> int:
    """The size of the file that `write_index` would write."""
    return sum(len(piece) for piece in _pieces(arrays))


def _pieces(arrays: IndexArrays) -> list[memoryview | bytes]:
    """The content of the file: header length, header, then the arrays with padding between them."""
    header: dict[str, Any] = {}
    position, pieces = 0, []
    for name in ARRAY_TYPES:
        array = np.ascontiguousarray(getattr(arrays, name))
        gap = -position % ALIGNMENT
        if gap:
            header[f"{PAD}{position}"] = {"dtype": "U8", "shape": [gap], "data_offsets": [position, position + gap]}
            pieces.append(bytes(gap))
        position += gap
        header[name] = {**_tensor_form(array), "data_offsets": [position, position + array.nbytes]}
        position += array.nbytes
        pieces.append(array.view("u1").reshape(-1).data if array.size else b"")
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    return [len(text).to_bytes(8, "little"), text, *pieces]


def _tensor_form(array: np.ndarray) -> dict[str, Any]:
    if array.dtype.fields is not None:  # rows of a struct are stored as bytes
        return {"dtype": "U8", "shape": [len(array), array.dtype.itemsize]}
    return {"dtype": _TENSOR_TYPES[array.dtype.str], "shape": [len(array)]}


class Index:
    """A mapped index. Rows are unpacked on access; every number is checked against the array it points into."""

    def __init__(self, file: StoredFile, nbytes: int, field_count: int, digest: str | None) -> None:
        """Map the file. With a `digest` the whole file is read and compared with it."""
        if file.size != nbytes:
            raise CacheError(f"{file.name}: has {file.size:,} bytes, {nbytes:,} expected; restore it from a copy")
        header, start = read_header(file, _MAX_HEADER)
        self._map = file.map()
        if digest is not None and xxhash.xxh3_128(self._map).hexdigest() != digest:
            raise CacheError(
                f"{file.name}: content does not match its hash; restore it, or remove the cache and save it again"
            )
        self.arrays = IndexArrays(**{name: self._array(header, name, start) for name in ARRAY_TYPES})
        self.sample_count, self.entry_count = len(self.arrays.samples), len(self.arrays.entries)
        # Rows are unpacked from views that end with their array, so struct rejects offsets past the end.
        views = {name: self._view(header[name]["data_offsets"], start) for name in ARRAY_TYPES}
        self.leaves, self._samples, self._entries = views["leaves"], views["samples"], views["entries"]
        self._variants, self._refs = views["variants"], views["refs"]
        self._routes, self._row_layouts = views["routes"], views["row_layouts"]
        self._width, self._route_row = field_count, route_row(field_count)
        if len(self._routes) != self.sample_count * self._route_row.size:
            raise CacheError(f"{file.name}: routes do not match {field_count} fields; restore it from a copy")
        self._layouts: dict[int, Layout] = {}

    def _view(self, offsets: Sequence[int], start: int) -> memoryview:
        return self._map[start + offsets[0] : start + offsets[1]]

    def _array(self, header: dict[str, Any], name: str, start: int) -> np.ndarray:
        dtype = ARRAY_TYPES[name]
        if name not in header:
            raise CacheError(f"the index is damaged: array {name!r} is missing")
        info = header[name]
        begin, end = info["data_offsets"]
        if info["dtype"] != _tensor_form(np.empty(0, dtype))["dtype"] or (end - begin) % dtype.itemsize:
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
        first = _U64.unpack_from(self._samples, i * SAMPLE.itemsize)[0]  # `variants`, the first column
        counts = _numbers(field_count).unpack_from(self._variants, 4 * first)
        entries = _numbers(sum(counts)).unpack_from(self._variants, 4 * (first + field_count))
        result, position = [], 0
        for count in counts:
            result.append(entries[position : position + count])
            position += count
        return result

    def entry_row(self, entry: int) -> EntryRow:
        return read_entry_row(self._entries, entry)

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
            text = self._text("layout", self.arrays.layouts, self.arrays.layout_ends, number)
            found = self._layouts[number] = Layout(text.decode())
        return found

    def layout_text(self, number: int) -> str:
        return self._text("layout", self.arrays.layouts, self.arrays.layout_ends, number).decode()

    def string(self, number: int) -> str:
        return self._text("string", self.arrays.strings, self.arrays.string_ends, number).decode(
            "utf-8", "surrogatepass"
        )

    @staticmethod
    def _text(what: str, texts: np.ndarray, ends: np.ndarray, number: int) -> bytes:
        if number >= len(ends):
            raise CacheError(f"the index is damaged: {what} {number} of {len(ends)}")
        start = int(ends[number - 1]) if number else 0
        end = int(ends[number])
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


assert [f.name for f in fields(IndexArrays)] == list(ARRAY_TYPES)


def index_in_memory(arrays: IndexArrays, field_count: int) -> Index:
    """The index that would be opened after writing these arrays."""
    file = MemoryFile(b"".join(_pieces(arrays)), "index in memory")
    return Index(file, file.size, field_count, None)


def open_index(place: Place, manifest: Manifest, check: bool | None = None) -> Index:
    """The index of a published generation. `check` compares it with its hash, by default only if it is small."""
    storage = storage_at(place)
    if check is None:
        check = manifest.index_bytes <= _CHECKED_INDEX_BYTES
    digest = manifest.index_hash if check else None
    file = storage.open_to_map(manifest.index_name, manifest.id, manifest.index_bytes, manifest.index_hash)
    index = Index(file, manifest.index_bytes, len(manifest.fields), digest)
    if index.sample_count != manifest.counts.get("samples"):
        expected = manifest.counts.get("samples")
        raise CacheError(f"{storage.path}: the index has {index.sample_count} samples, the manifest says {expected}")
    return index
