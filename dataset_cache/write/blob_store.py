"""The blobs that a writer can refer to: published ones, those of a killed writer, and its own. Each is stored once."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from ...errors import CacheError
from ..format import (
    NAMES,
    SHARDS,
    BuildShard,
    EntryRecord,
    Manifest,
    Recovered,
    Segment,
    ShardFile,
    Split,
    Storage,
    TensorSpec,
    abandoned,
    blob_hash,
    count_bytes,
    publish_shard,
    recover,
    remove_segment,
    tensor_bytes,
)
from ..index import OFFSET_BITS, Index, split_location
from ..read import ShardFiles
from .digest_table import DigestTable


@dataclass(frozen=True)
class Stored:
    """The location of a tensor's blob. `collides` if other bytes with the same hash are stored too."""

    location: int
    hash: bytes
    collides: bool


def content_key(field: str, parts: Split, stored: Sequence[Stored] | None = None) -> bytes:
    """The key of an entry that was added without one: a hash of its content, whether or not it is stored trimmed."""
    if stored is None:
        hashes = [blob_hash(tensor_bytes(t), NAMES[t.dtype], tuple(t.shape)) for t in parts.tensors]
        stored = [Stored(0, digest, False) for digest in hashes]
    digest = hashlib.blake2b(digest_size=16)
    for part in (field.encode(), parts.layout.encode(), parts.leaves):
        digest.update(len(part).to_bytes(8, "little") + part)
    for blob in stored:
        digest.update(blob.hash + (blob.location.to_bytes(8, "little") if blob.collides else b""))
    return digest.digest()


class BlobStore:
    """Stores each blob once. Shards are numbered: first the published ones, then new ones in order of creation."""

    def __init__(self, storage: Storage, manifest: Manifest | None, index: Index | None) -> None:
        self._storage = storage
        self._index = index
        self._published = ShardFiles(storage, manifest.shards if manifest else ())
        self._next_number = manifest.next_shard if manifest else 0
        self._first_new = len(self._published.shards)
        self._new: list[BuildShard] = []
        self._ids = {shard.file: n for n, shard in enumerate(self._published.shards)}
        self._blobs = DigestTable()
        self._segment: Segment | None = None
        self._adopted: list[Recovered] = []
        self._shifts: dict[int, int] = {}
        self.unflushed_bytes = 0
        self.flushed_at = time.monotonic()

    def recover(self) -> Iterator[tuple[EntryRecord, list[tuple[int, bytes]]]]:
        """Adopt the segments of killed writers. Yields their entries with references that are valid here."""
        self._adopted = [recover(self._storage, folder) for folder in abandoned(self._storage)]
        shifts: dict[str, int] = {}
        for recovered in self._adopted:
            for shard in recovered.shards:
                self._adopt(shard)
                shifts[shard.name] = shard.shift
        # Entries of one segment can refer to shards of another, which may have moved since.
        for recovered in self._adopted:
            for entry in recovered.entries:
                if all(name in self._ids and at >= shifts.get(name, 0) for name, at, _ in entry.refs):
                    places = [(self._ids[name], at - shifts.get(name, 0), digest) for name, at, digest in entry.refs]
                    yield entry, [(shard << OFFSET_BITS | at, digest) for shard, at, digest in places]

    def _adopt(self, shard: BuildShard) -> None:
        if shard.file in self._ids:  # published just before the crash
            self._ids[shard.name] = self._ids[shard.file]
            return
        self._number(shard)
        for blob in shard.blobs:
            if self._blobs.get(blob.hash) is None:
                self._blobs.add(blob.hash, self._ids[shard.name] << OFFSET_BITS | blob.offset)

    def put(self, tensor: torch.Tensor, kind: str) -> Stored:
        """Store a tensor's bytes, or find them stored. On an equal hash the bytes are compared."""
        data = tensor_bytes(tensor)
        spec = _spec(tensor.dtype, tensor.shape)
        digest = blob_hash(data, spec.dtype, spec.shape)
        found = self._find(digest)
        if found is not None and self._read(found, len(data)) == data:
            return Stored(found, digest, False)
        segment = self._own_segment()
        blob = segment.append(kind, digest, spec, data, apart=found is not None)
        shard = next(s for s in reversed(segment.shards) if s.kind == kind)
        location = self._number(shard) << OFFSET_BITS | blob.offset
        if self._blobs.get(digest) is None:
            self._blobs.add(digest, location)
        self.unflushed_bytes += len(data)
        return Stored(location, digest, found is not None)

    def record(self, key: bytes, field: str, parts: Split, stored: Sequence[Stored]) -> None:
        """Record an entry in the journal. It refers to shards by name: their numbers may change."""
        refs = [(*self._place(s.location), s.hash) for s in stored]
        self._own_segment().record(EntryRecord(key, field, parts.layout, parts.leaves, refs))

    @property
    def waiting_bytes(self) -> int:
        """The size of the records that are in memory until the next flush."""
        return self._segment.waiting_bytes if self._segment is not None else 0

    def flush(self) -> None:
        try:
            if self._segment is not None:
                self._segment.flush()
        except OSError as error:
            raise CacheError(
                f"{self._storage.path}: cannot be written: {error.strerror}; entries flushed before are safe"
            ) from error
        self.unflushed_bytes, self.flushed_at = 0, time.monotonic()

    def seal(self) -> tuple[list[ShardFile], dict[int, int], int]:
        """Finish all new shards. Returns all shards, the shift of the blobs in each new one, the next number."""
        self.flush()
        try:
            for number, shard in enumerate(self._new, self._first_new):
                if shard.file is None:
                    publish_shard(shard, self._next_number)
                    self._next_number += 1
                    # Kept until returned: a later shard may fail, and publishing may be tried again.
                    self._shifts[number] = shard.shift
            if self._new:
                self._storage.sync(SHARDS)
        except OSError as error:
            raise CacheError(
                f"{self._storage.path}: cannot be published: {error.strerror}; the last generation is unchanged"
            ) from error
        new = [self._published_file(shard) for shard in self._new]
        shifts, self._shifts = self._shifts, {}
        return [*self._published.shards, *new], shifts, self._next_number

    def _published_file(self, shard: BuildShard) -> ShardFile:
        status = self._storage.stat(shard.place)
        assert shard.file is not None and status is not None, "a sealed shard has its name and its place"
        return ShardFile(shard.file, status.size, shard.file.split("-")[2].split(".")[0])

    def drop(self) -> None:
        """Remove the segments after publishing: everything in them is published."""
        if self._segment is not None:
            self._segment.remove()
            self._segment = None
        for recovered in self._adopted:
            recovered.remove()

    def close(self) -> None:
        """Leave flushed entries to the next writer."""
        for recovered in self._adopted:
            recovered.journal.close()
        if self._segment is not None:
            self._segment.close()
            if not self._segment.entry_count:
                remove_segment(self._storage, self._segment.folder)
            self._segment = None

    def _own_segment(self) -> Segment:
        if self._segment is None:
            self._segment = Segment(self._storage)
        return self._segment

    def _number(self, shard: BuildShard) -> int:
        if shard.name not in self._ids:
            self._ids[shard.name] = self._first_new + len(self._new)
            if shard.file is not None:
                self._ids[shard.file] = self._ids[shard.name]
            self._new.append(shard)
        return self._ids[shard.name]

    def _find(self, digest: bytes) -> int | None:
        found = self._blobs.get(digest)
        if found is None and self._index is not None:
            ref = self._index.find_ref(digest)
            found = None if ref is None else self._index.locations(ref, 1)[0]
        return found

    def _read(self, location: int, size: int) -> bytes | bytearray | None:
        """Stored bytes, to compare; None if they cannot be read, so that a damaged blob is stored again."""
        shard, offset = split_location(location)
        try:
            if shard >= self._first_new:
                return self._new[shard - self._first_new].read(offset, size)
            self._published.check_range(shard, offset, size)
            return self._published.file(shard).read(offset, size)
        except CacheError:
            return None

    def _place(self, location: int) -> tuple[str, int]:
        shard, offset = split_location(location)
        if shard < self._first_new:
            return self._published.shards[shard].file, offset
        # Once a shard has moved, locations in it refer to its published file.
        return self._new[shard - self._first_new].file or self._new[shard - self._first_new].name, offset


@lru_cache(1024)
def _spec(dtype: torch.dtype, shape: torch.Size) -> TensorSpec:
    """One object per dtype and shape: a large build keeps a spec for every blob."""
    return TensorSpec(NAMES[dtype], tuple(shape), count_bytes(NAMES[dtype], tuple(shape)))
