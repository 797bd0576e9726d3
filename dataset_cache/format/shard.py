"""A shard: a safetensors file of blobs, written as a stream and never changed after it is published.

Space for the header is reserved before the first blob, so nothing is kept in memory. Blobs are named by their hash
and start on 64-byte boundaries; tensors named `~pad…` fill the gaps, because safetensors allows no holes.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import xxhash

from ...errors import CacheError
from ..stored_file import StoredFile
from .storage import Storage
from .tensors import MAX_AXES, count_bytes

ALIGNMENT = 64
SHARD_BYTES = 256 << 20
HEADER_BYTES = 256 << 10
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
PAD = "~pad"
SHARD_NAME = re.compile(r"[a-z]-[0-9]{5,9}-[0-9a-f]{32}\.safetensors")
_WRITING_STEP = 8 << 20
# Upper bounds of the header size of a blob without type and shape, of a pad before it, and of all together.
_LISTED, _LISTED_PAD = 112, 96
_MAX_LISTED = _LISTED + 32 + 24 * MAX_AXES + _LISTED_PAD
_METADATA = {"format": "pt", "streamcache": "1"}


@dataclass(frozen=True, slots=True)
class Blob:
    """One tensor in a shard: hash, dtype, shape and offset in the file."""

    hash: bytes
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return count_bytes(self.dtype, self.shape)


@dataclass(frozen=True)
class ShardFile:
    """A published shard as the manifest lists it. The hash is that of its header, which lists every blob's hash."""

    file: str
    bytes: int
    hash: str


def blob_hash(data: memoryview, dtype: str, shape: tuple[int, ...]) -> bytes:
    """The address of a blob: xxh3-128 of its dtype and shape, then its bytes."""
    digest = hash_start(dtype, shape)
    digest.update(data)
    return digest.digest()


def hash_start(dtype: str, shape: tuple[int, ...]) -> xxhash.xxh3_128:
    """The hash of a blob before its bytes are added, for callers that have them in pieces."""
    return xxhash.xxh3_128(f"{dtype}{list(shape)}".encode())


class ShardWriter:
    """A growing shard. The file is valid safetensors only after `seal`."""

    def __init__(self, storage: Storage, name: str, header_bytes: int = HEADER_BYTES) -> None:
        self.data_start = header_bytes
        self.end = header_bytes
        self.blobs: list[Blob] = []
        self._header_used = 128  # length, metadata and braces
        self._writing = header_bytes  # the system was asked to write up to here
        self._file = storage.edit(name, new=True)

    def has_room(self, nbytes: int) -> bool:
        """Whether one more blob fits. An empty shard takes a blob of any size."""
        if not self.blobs:
            return True
        return self.end + nbytes <= SHARD_BYTES and self._header_used + _MAX_LISTED <= self.data_start

    def append(self, digest: bytes, dtype: str, shape: tuple[int, ...], data: memoryview) -> Blob:
        gap = -self.end % ALIGNMENT
        if gap:
            self._file.write(self.end, bytes(gap))
        blob = Blob(digest, dtype, shape, self.end + gap)
        self._file.write(blob.offset, data)
        self.end = blob.offset + len(data)
        self.blobs.append(blob)
        self._header_used += _LISTED + len(dtype) + len(str(shape)) + (_LISTED_PAD if gap else 0)
        if self.end - self._writing >= _WRITING_STEP:
            self._file.start_writing(self._writing, self.end - self._writing)
            self._writing = self.end
        return blob

    def rewind(self, end: int, blobs: int) -> None:
        """Undo appends after this point, for example after the disk filled up in the middle of a blob."""
        del self.blobs[blobs:]
        self.end = end
        self._writing = min(self._writing, end)
        self._file.truncate(end)

    def sync(self) -> None:
        self._file.sync()

    def read(self, offset: int, size: int) -> bytes:
        """Bytes written earlier, to compare with new ones."""
        return self._file.read(offset, size)

    def close(self) -> None:
        self._file.close()


def seal(storage: Storage, name: str, blobs: list[Blob], data_start: int, end: int) -> str:
    """Write the header in front of the blobs of a growing file and truncate the rest. Returns the header's hash."""
    header = render_header(blobs, data_start, end)
    file = storage.edit(name)
    try:
        file.truncate(end)
        file.write(0, header)
        file.sync()
    finally:
        file.close()
    return header_hash(header)


def header_hash(header: bytes) -> str:
    return xxhash.xxh3_128(header).hexdigest()


def tight_start(blobs: list[Blob], data_start: int, end: int) -> int:
    """The smallest aligned offset at which the data could start."""
    size = len(_header_json(blobs, data_start, end)) + 8
    return size + -size % ALIGNMENT


def render_header(blobs: list[Blob], data_start: int, end: int) -> bytes:
    """The first `data_start` bytes of a shard: length, JSON, and padding with spaces, which safetensors allows."""
    text = _header_json(blobs, data_start, end)
    if len(text) > data_start - 8:
        raise AssertionError(
            f"header of {len(text)} bytes does not fit into {data_start}: the shard was filled too far"
        )
    return (data_start - 8).to_bytes(8, "little") + text.ljust(data_start - 8)


def _header_json(blobs: list[Blob], data_start: int, end: int) -> bytes:
    header: dict[str, Any] = {"__metadata__": _METADATA}
    position = data_start
    for blob in blobs:
        if blob.offset > position:
            header[f"{PAD}{position - data_start}"] = _pad(position - data_start, blob.offset - data_start)
        begin, position = blob.offset - data_start, blob.offset + blob.nbytes
        shape = _listed_shape(blob)
        header[blob.hash.hex()] = {"dtype": blob.dtype, "shape": shape, "data_offsets": [begin, position - data_start]}
    if end > position:
        header[f"{PAD}{position - data_start}"] = _pad(position - data_start, end - data_start)
    return json.dumps(header, separators=(",", ":")).encode()


def _listed_shape(blob: Blob) -> list[int]:
    """The shape in the header. safetensors counts 4-bit values, torch counts bytes of two values each."""
    if blob.dtype != "F4":
        return list(blob.shape)
    return [*blob.shape[:-1], blob.shape[-1] * 2] if blob.shape else [2]


def _pad(begin: int, end: int) -> dict[str, Any]:
    return {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}


def read_header(file: StoredFile, limit: int = MAX_HEADER_BYTES) -> tuple[dict[str, dict[str, Any]], int]:
    """The tensors that a safetensors file lists, and where its data starts. Refuses an invalid file."""
    place = file.name
    if file.size < 8:
        raise CacheError(f"{place}: {file.size} bytes, too small for a safetensors file")
    size = int.from_bytes(file.read(0, 8), "little")
    if size > min(limit, file.size - 8):
        raise CacheError(f"{place}: has a header of {size:,} bytes in a file of {file.size:,}")
    raw = file.read(8, size)
    if raw[:1] != b"{":
        raise CacheError(f"{place}: the header is not JSON")
    try:
        header = json.loads(bytes(raw).decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise CacheError(f"{place}: the header cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise CacheError(f"{place}: the header is not an object")
    header.pop("__metadata__", None)
    _check_ranges(header, file.size - 8 - size, place)
    return header, 8 + size


def _no_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"{key!r} occurs twice")
        result[key] = value
    return result


def _check_ranges(header: dict[str, Any], data_bytes: int, place: str) -> None:
    """Check that the ranges leave no holes or overlaps, end with the file, and match dtype and shape."""
    ranges = []
    for name, info in header.items():
        try:
            begin, end = info["data_offsets"]
            shape = tuple(info["shape"])
            if not all(type(n) is int for n in (begin, end, *shape)):
                raise TypeError("sizes and offsets must be integers")
            expected = count_bytes(info["dtype"], shape) // (2 if info["dtype"] == "F4" else 1)
            wrong = min(begin, *shape, 0) < 0 or end - begin != expected
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise CacheError(f"{place}: the header has an invalid entry {name!r}: {error}") from error
        if wrong:
            raise CacheError(
                f"{place}: {name!r} has {expected:,} bytes by its shape, but the header says {begin}–{end}"
            )
        ranges.append((begin, end))
    position = 0
    for begin, end in sorted(ranges):
        if begin != position:
            raise CacheError(f"{place}: the header has a hole or an overlap at {position:,}")
        position = end
    if position != data_bytes:
        raise CacheError(f"{place}: contains {data_bytes:,} bytes of data, but its header lists {position:,}")
