"""The files of a generation as they travel: their names and sizes, and the check of their bytes as they arrive."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import xxhash

from ...errors import CacheError
from ..format import (
    MAX_HEADER_BYTES,
    PAD,
    SHARDS,
    IndexSegment,
    Manifest,
    ShardFile,
    hash_start,
    header_hash,
    read_header,
)


class Check(Protocol):
    """Is fed the bytes of a file from front to back, and says at the end what is wrong with them."""

    def feed(self, data: memoryview) -> None: ...

    def problem(self) -> str | None: ...


@dataclass(frozen=True)
class Cargo:
    """One file of a generation. It never changes under its name."""

    name: str
    bytes: int
    check: Callable[[], Check]


def cargo_of(manifest: Manifest) -> list[Cargo]:
    """The files of a generation except the manifest, which goes last."""
    shards = (Cargo(f"{SHARDS}/{each.file}", each.bytes, _shard_check(each)) for each in manifest.shards)
    return [*shards, *(Cargo(each.file, each.bytes, _index_check(each)) for each in manifest.index_files)]


def _index_check(segment: IndexSegment) -> Callable[[], Check]:
    return lambda: WholeCheck(segment.hash)


class WholeCheck:
    """A file whose hash is that of all its bytes."""

    def __init__(self, expected: str) -> None:
        self._expected, self._digest = expected, xxhash.xxh3_128()

    def feed(self, data: memoryview) -> None:
        self._digest.update(data)

    def problem(self) -> str | None:
        return None if self._digest.hexdigest() == self._expected else "its bytes do not match its hash"


class ShardCheck:
    """A shard: the manifest has the hash of its header, and the header has the hash of every blob."""

    def __init__(self, shard: ShardFile) -> None:
        self._shard = shard
        self._head, self._at, self._needed = bytearray(), 0, 8
        self._blobs: Iterator[_Blob] = iter(())
        self._blob: _Blob | None = None
        self._problem: str | None = None

    def feed(self, data: memoryview) -> None:
        if self._problem is None and self._at < self._needed:
            data = self._feed_head(data)
        while data and self._problem is None:
            data = self._feed_blob(data)

    def problem(self) -> str | None:
        if self._problem is None and (self._at != self._shard.bytes or self._blob is not None):
            return f"it ends at {self._at:,} of {self._shard.bytes:,} bytes"
        return self._problem

    def _feed_head(self, data: memoryview) -> memoryview:
        while data and self._at < self._needed:
            taken = data[: self._needed - self._at]
            self._head += taken
            self._at, data = self._at + len(taken), data[len(taken) :]
            if self._at == self._needed == 8:
                self._needed = 8 + int.from_bytes(self._head, "little")
                if self._needed > min(MAX_HEADER_BYTES, self._shard.bytes):
                    self._problem = "its header has an impossible size"
                    return data
        if self._at == self._needed:
            self._open_head()
        return data

    def _open_head(self) -> None:
        head = bytes(self._head)
        if header_hash(head) != self._shard.hash:
            self._problem = f"its header does not match its hash {self._shard.hash[:8]}…"
            return
        try:
            listed, start = read_header(_Head(self._shard, head))
            self._blobs = iter(sorted(_listed_blobs(listed, start), key=lambda blob: (blob.begin, blob.end)))
        except (CacheError, ValueError) as error:
            self._problem = str(error)
        self._head.clear()
        self._next_blob()

    def _next_blob(self) -> None:
        """Go to the next blob that has bytes to come; those that end here are compared with their hash."""
        while self._problem is None:
            if self._blob is not None and not self._blob.is_intact():
                self._problem = f"the bytes at {self._blob.begin:,} do not match their hash"
            self._blob = next(self._blobs, None)
            if self._blob is None or self._blob.end > self._at:
                return

    def _feed_blob(self, data: memoryview) -> memoryview:
        if self._blob is None:  # padding at the end
            self._at += len(data)
            return data[:0]
        gap = max(self._blob.begin - self._at, 0)
        taken = data[gap : gap + self._blob.end - max(self._at, self._blob.begin)]
        self._blob.update(taken)
        self._at += min(gap, len(data)) + len(taken)
        if self._at == self._blob.end:
            self._next_blob()
        return data[gap + len(taken) :]


class _Blob:
    def __init__(self, begin: int, end: int, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        self.begin, self.end, self._hash = begin, end, bytes.fromhex(name)
        self._digests = [hash_start(dtype, each) for each in _stored_shapes(dtype, shape)]

    def update(self, data: memoryview) -> None:
        for digest in self._digests:
            digest.update(data)

    def is_intact(self) -> bool:
        return any(digest.digest() == self._hash for digest in self._digests)


def _stored_shapes(dtype: str, listed: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The shapes that a header may mean: safetensors counts 4-bit values, the hash of a blob counts bytes of two."""
    if dtype != "F4":
        return [listed]
    return [(*listed[:-1], listed[-1] // 2), *([()] if listed == (2,) else [])]


def _listed_blobs(listed: Mapping[str, Mapping[str, Any]], start: int) -> Iterator[_Blob]:
    for name, info in listed.items():
        if not name.startswith(PAD):
            begin, end = info["data_offsets"]
            yield _Blob(start + begin, start + end, name, info["dtype"], tuple(info["shape"]))


class _Head:
    """The header of a shard in memory, as the file that it begins."""

    identity: tuple[int, ...] = ()

    def __init__(self, shard: ShardFile, head: bytes) -> None:
        self.name, self.size, self._head = shard.file, shard.bytes, head

    def read(self, offset: int, size: int) -> bytearray:
        return bytearray(self._head[offset : offset + size])

    def read_into(self, offset: int, buffers: Any, nbytes: int) -> None:
        data = memoryview(self._head)[offset:]
        for buffer in buffers:
            buffer[:] = data[: len(buffer)]
            data = data[len(buffer) :]

    def will_need(self, offset: int, size: int) -> None:
        pass

    def map(self) -> memoryview:
        return memoryview(self._head)


def _shard_check(shard: ShardFile) -> Callable[[], Check]:
    return lambda: ShardCheck(shard)
