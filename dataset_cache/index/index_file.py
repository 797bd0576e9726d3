"""An index file: its arrays and their types, and how they are written."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import xxhash

from ...errors import CacheError
from ..format import ALIGNMENT, PAD, Storage, index_generation, index_name
from .index_rows import ENTRY, REF, SAMPLE

MAX_INDEX_HEADER = 1 << 20
_CONTINUES = "continues"  # in the header's metadata


@dataclass(frozen=True)
class IndexArrays:
    """All arrays of an index, in memory or mapped. Text arrays are bytes; `*_ends` has the end of each text.

    The last four repeat the others in forms that are faster to use; publishing derives them (see `derive`).
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


@dataclass(frozen=True)
class Chunks:
    """An array that is made in chunks while it is written, and is never in memory as a whole."""

    dtype: np.dtype
    length: int
    make: Callable[[], Iterable[np.ndarray]]

    def __len__(self) -> int:
        return self.length

    @property
    def nbytes(self) -> int:
        return self.length * self.dtype.itemsize


_NAMES = {"<u4": "U32", "<u8": "U64", "|u1": "U8"}


def sort_order(keys: np.ndarray) -> np.ndarray:
    """The sort order of 16-byte values, compared as bytes."""
    halves = np.ascontiguousarray(keys).view(">u8").reshape(-1, 2)
    return np.lexsort((halves[:, 1], halves[:, 0])).astype("<u4")


def write_index(
    storage: Storage,
    name: str,
    arrays: IndexArrays,
    continues: Sequence[str] = (),
    derived: Mapping[str, Chunks] | None = None,
) -> tuple[int, str]:
    """Write the arrays as a safetensors file. Returns its size and hash; the caller makes its name durable.

    `continues` are the generations whose index files come before this one; `derived` takes the place of arrays.
    """
    digest = xxhash.xxh3_128()
    with storage.create(name) as file:
        for piece in index_pieces(arrays, continues, derived):
            digest.update(piece)
            file.write(piece)
        size = file.tell()
    return size, digest.hexdigest()


def index_size(arrays: IndexArrays, derived: Mapping[str, Chunks] | None = None) -> int:
    """The size of the file that `write_index` would write."""
    header, _, size = _header(_columns(arrays, derived), ())
    return len(header) + size


def continued(storage: Storage, name: str) -> list[str]:
    """The generations whose index files this index file continues, from its header; none if it cannot be read."""
    try:
        file = storage.open(name)
        size = int.from_bytes(file.read(0, 8), "little")
        header = json.loads(bytes(file.read(8, min(size, MAX_INDEX_HEADER))))
        found = header["__metadata__"][_CONTINUES].split()
    except (CacheError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    return [generation for generation in found if index_generation(index_name(generation)) is not None]


def index_pieces(
    arrays: IndexArrays, continues: Sequence[str] = (), derived: Mapping[str, Chunks] | None = None
) -> Iterator[memoryview | bytes]:
    """The content of the file: header length, header, then the arrays with padding between them."""
    columns = _columns(arrays, derived)
    header, gaps, _ = _header(columns, continues)
    yield header
    for gap, column in zip(gaps, columns.values(), strict=True):
        yield bytes(gap)
        for chunk in column.make() if isinstance(column, Chunks) else (column,):
            yield np.ascontiguousarray(chunk).view("u1").reshape(-1).data if chunk.size else b""


def _columns(arrays: IndexArrays, derived: Mapping[str, Chunks] | None) -> dict[str, np.ndarray | Chunks]:
    return {name: getattr(arrays, name) for name in ARRAY_TYPES} | dict(derived or {})


def _header(columns: Mapping[str, np.ndarray | Chunks], continues: Sequence[str]) -> tuple[bytes, list[int], int]:
    """The bytes before the arrays, the padding before each, and the size of all of them."""
    header: dict[str, Any] = {"__metadata__": {_CONTINUES: " ".join(continues)}} if continues else {}
    position, gaps = 0, list[int]()
    for name, column in columns.items():
        gap = -position % ALIGNMENT
        if gap:
            header[f"{PAD}{position}"] = {"dtype": "U8", "shape": [gap], "data_offsets": [position, position + gap]}
        gaps.append(gap)
        position += gap
        header[name] = {**tensor_form(column), "data_offsets": [position, position + column.nbytes]}
        position += column.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, gaps, position


def tensor_form(array: np.ndarray | Chunks) -> dict[str, Any]:
    if array.dtype.fields is not None:  # rows of a struct are stored as bytes
        return {"dtype": "U8", "shape": [len(array), array.dtype.itemsize]}
    return {"dtype": _NAMES[array.dtype.str], "shape": [len(array)]}


TENSOR_TYPES = {name: tensor_form(np.empty(0, dtype))["dtype"] for name, dtype in ARRAY_TYPES.items()}

assert [f.name for f in fields(IndexArrays)] == list(ARRAY_TYPES)
