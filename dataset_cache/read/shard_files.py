"""The open shards of a generation: a bounded number of files, each checked when it is first opened."""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from ...errors import CacheError
from ..format import MAX_HEADER_BYTES, SHARDS, Place, Read, ShardFile, StoredFile, header_hash, storage_at
from .leases import Lease

MAX_OPEN = 128


class ShardFiles:
    """Reads from the shards of one generation, from any number of threads."""

    def __init__(self, place: Place, shards: Sequence[ShardFile], lease: Lease | None = None) -> None:
        """`lease` protects the files. Tensors outlive the cache object, so the open files hold it."""
        self._storage = storage_at(place)
        self.shards = shards
        self._lease = lease
        self._open: OrderedDict[int, StoredFile] = OrderedDict()
        self._kept: dict[int, StoredFile] = {}  # if all shards may stay open, the order of use does not matter
        self._identities: dict[int, tuple] = {}
        self._lock = threading.Lock()
        self._closed = False
        _live.add(self)

    def read(self, shard: int, offset: int, buffers: Sequence[memoryview], nbytes: int) -> None:
        """Fill `buffers`, `nbytes` in total, from `offset` on in a shard."""
        file = self._kept.get(shard) or self.file(shard)
        if offset + nbytes > file.size:
            self.check_range(shard, offset, nbytes)
        file.read_into(offset, buffers, nbytes)

    @property
    def is_remote(self) -> bool:
        """Whether reads take so long that several should be made at once, by `read_at_once`."""
        return self._storage.is_remote

    def read_at_once(self, reads: Sequence[tuple[int, int, Sequence[memoryview], int]]) -> None:
        """Several calls of `read`."""
        for shard, offset, _, nbytes in reads:
            self.check_range(shard, offset, nbytes)
        closed = {read[0] for read in reads} - self._open.keys()
        self._storage.at_once([partial(self.file, shard) for shard in closed])
        self._storage.read_at_once([Read(self.file(read[0]), *read[1:]) for read in reads])

    def file(self, shard: int) -> StoredFile:
        with self._lock:
            file = self._open.get(shard)
            if file is not None:
                self._open.move_to_end(shard)
                return file
        file = self._open_checked(shard)
        with self._lock:
            if len(self.shards) <= MAX_OPEN:
                self._kept[shard] = file
            self._open[shard] = file
            # A file that another thread still reads from closes when that thread is done.
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        return file

    def check_range(self, shard: int, offset: int, nbytes: int) -> None:
        if shard >= len(self.shards):
            raise CacheError(f"the index is damaged: it refers to shard {shard} of {len(self.shards)}")
        if offset + nbytes > self.shards[shard].bytes:
            raise CacheError(
                f"the index is damaged: it refers to {nbytes:,} bytes at {offset:,} of {self.shards[shard].file}, "
                f"which has {self.shards[shard].bytes:,}"
            )

    def _open_checked(self, shard: int) -> StoredFile:
        if self._closed:
            raise CacheError(f"{self._storage.path}: this cache is closed; open it again")
        self.check_range(shard, 0, 0)
        self._storage.refuse_link(SHARDS)
        entry = self.shards[shard]
        file = self._storage.open(f"{SHARDS}/{entry.file}")
        if file.size != entry.bytes:
            raise CacheError(
                f"{SHARDS}/{entry.file}: has {file.size:,} bytes, {entry.bytes:,} expected; "
                f'restore it, or run "streamcache verify {self._storage.path.name}"'
            )
        known = self._identities.get(shard)
        if known is None:
            self._check_header(file, entry)
            self._identities[shard] = file.identity
        elif known != file.identity:
            raise CacheError(f"{SHARDS}/{entry.file}: was replaced while this cache was open; open the cache again")
        return file

    def _check_header(self, file: StoredFile, entry: ShardFile) -> None:
        """The header lists every blob's hash, so a shard with the right header is the right shard."""
        size = int.from_bytes(file.read(0, 8), "little") + 8 if file.size >= 8 else 0
        if not 8 < size <= min(file.size, MAX_HEADER_BYTES) or header_hash(bytes(file.read(0, size))) != entry.hash:
            raise CacheError(
                f"{SHARDS}/{entry.file}: the header does not match its hash {entry.hash[:8]}…; "
                f'restore it, or run "streamcache verify {self._storage.path.name}"'
            )

    def close(self) -> None:
        """Close all files and end the lease; reading is an error from now on."""
        with self._lock:
            self._closed = True
            self._open.clear()
            self._kept.clear()
        if self._lease is not None:
            self._lease.release()

    def _forget_handles(self) -> None:
        """In a forked child: the parent shares file positions, and one of its threads may have held the lock."""
        self._lock = threading.Lock()
        self._open, self._kept = OrderedDict(), {}


_live: "weakref.WeakSet[ShardFiles]" = weakref.WeakSet()


def _after_fork() -> None:
    for files in list(_live):
        files._forget_handles()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
