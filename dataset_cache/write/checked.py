"""A published generation opened with every check, for code that writes the next one.

`open_checked` compares the index with its hash and proves it consistent: every number points to something that exists,
and every array is in order. Readers skip this; a writer must not carry damage into the next generation.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CacheError, CacheUnreadable
from ..address import Address
from ..format import (
    DAMAGED,
    MANIFEST,
    SHARDS,
    Manifest,
    Place,
    ShardFile,
    Storage,
    read_manifest,
    remember_dropped,
    retrying,
    storage_at,
)
from ..index import (
    BlobTable,
    Index,
    IndexArrays,
    blob_table,
    blob_tables,
    bucket_table,
    count_used,
    find_keys,
    index_in_memory,
    open_index,
    prune,
    used_entries,
)
from ..read import Lease, ShardFiles, refuse_lost
from .consistency import find_inconsistency, find_wrong_order
from .publishing import PublishLock, with_features
from .repack import plan_rewrite

SMALL_INDEX = 256 << 10  # a file takes in those before it until it has this size
_ATTEMPTS = 10
_REMEDY = "restore it from a copy, or remove the cache and save it again"


@dataclass(frozen=True)
class CheckedGeneration:
    """A generation whose index matches its hash and, if it is `thorough`, is consistent.

    One that is not `stored` is in memory only.
    """

    storage: Storage
    manifest: Manifest
    index: Index
    thorough: bool = True
    stored: bool = True

    @property
    def folder(self) -> Path | Address:
        return self.storage.path

    @property
    def arrays(self) -> IndexArrays:
        return self.index.arrays

    @cached_property
    def table(self) -> BlobTable:
        return blob_table(self.arrays)

    def tables(self) -> Iterator[tuple[range, BlobTable]]:
        """As `table`, of a few shards at a time: which, and their blobs."""
        return blob_tables(self.index, len(self.manifest.shards))

    @cached_property
    def files(self) -> ShardFiles:
        return ShardFiles(self.storage, self.manifest.shards)

    @cached_property
    def used(self) -> np.ndarray:
        """A mask of the entries that a sample or a name uses."""
        found = [self.index.find_entry(bytes.fromhex(key)) for key in self.manifest.named.values()]
        named = [entry for entry in found if entry is not None]
        return count_used(self.index, len(self.manifest.fields), named)[0]

    def successor(
        self,
        arrays: IndexArrays,
        shards: Sequence[ShardFile],
        next_shard: int,
        named: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> Manifest:
        """Draft the manifest of a generation with these arrays and shards; `publish` adds the index's size and hash."""
        manifest = self.manifest
        named = dict(manifest.named if named is None else named)
        by_name = find_keys(arrays.entries, {bytes.fromhex(key) for key in named.values()})
        used = used_entries(arrays, len(manifest.fields), by_name)
        counts = {"samples": len(arrays.samples), "entries": len(arrays.entries), "unused": int((~used).sum())}
        numbers = {(b["dtype"], tuple(b["shape"])): n for n, b in enumerate(manifest.buckets)}
        draft = replace(
            manifest.with_segments((), ()),
            shards=tuple(shards),
            next_shard=next_shard,
            named=named,
            counts={**manifest.counts, **counts},
            buckets=bucket_table(numbers, arrays.samples),
            **changes,
        )
        return with_features(draft, [arrays])


def open_checked(place: Place, manifest: Manifest | None) -> CheckedGeneration:
    """Open the published generation with every check that needs no tensor bytes."""
    storage = storage_at(place)
    folder = storage.path
    if manifest is None:
        refuse_lost(storage)
        raise CacheError(f"{folder}: {MANIFEST} is missing; this is not a StreamCache cache, or it was never published")
    current = CheckedGeneration(storage, manifest, _open_index(storage, manifest, True))
    require_consistent(current)
    return current


def open_quickly(storage: Storage, manifest: Manifest, check: bool | None) -> CheckedGeneration:
    """Open the published generation for a writer that may leave its index as it is. A small one is checked fully.

    `check` compares the index with its hash, by default only files that are small.
    """
    if manifest.whole_index_bytes <= SMALL_INDEX:
        return open_checked(storage, manifest)
    return CheckedGeneration(storage, manifest, _open_index(storage, manifest, check), thorough=False)


def require_consistent(current: CheckedGeneration) -> None:
    manifest, index = current.manifest, current.index
    try:
        problem = find_inconsistency(manifest, index) or find_wrong_order(manifest, index)
    except (IndexError, ValueError) as error:
        problem = f"rows of a file point past the end ({error})"
    if problem is not None:
        raise CacheError(f"{current.folder / manifest.index_name}: {problem}; {_REMEDY}")


def _open_index(storage: Storage, manifest: Manifest, check: bool | None) -> Index:
    try:
        return open_index(storage, manifest, check)
    except CacheUnreadable:
        raise
    except CacheError as error:
        raise CacheError(f"{storage.path}: cannot use its index: {error}; {_REMEDY}") from error


def lost_shards(storage: Storage, shards: Sequence[ShardFile]) -> list[int]:
    """The numbers of the shards that are missing or have another size than they should: one look at each, no read."""
    found = [storage.stat(f"{SHARDS}/{shard.file}") for shard in shards]
    return [n for n, status in enumerate(found) if status is None or status[:2] != ("file", shards[n].bytes)]


def without_lost_shards(current: CheckedGeneration) -> CheckedGeneration:
    """The generation without lost shards, their entries and all samples, in memory only; itself if none is lost.

    The keys of these entries are remembered as damaged, and a writer that starts from this stores them again.
    """
    manifest, width = current.manifest, len(current.manifest.fields)
    lost = lost_shards(current.storage, manifest.shards)
    if not lost:
        return current
    rows = np.concatenate([current.table.rows_of(n) for n in lost])
    damaged = current.table.entries_using(rows, len(current.arrays.entries))
    arrays = prune(current.arrays, width, np.zeros(len(current.arrays.samples), bool), ~damaged)
    left = plan_rewrite(
        arrays, blob_table(arrays), manifest.shards, lost, manifest.next_shard, ShardFiles(current.storage, ()).file
    )
    keys = [current.index.key_of(entry) for entry in np.flatnonzero(damaged).tolist()]
    extra = remember_dropped(manifest.extra, keys, DAMAGED)
    draft = current.successor(left.arrays, left.shards, left.next_shard, named={}, extra=extra)
    return CheckedGeneration(current.storage, draft, index_in_memory(left.arrays, width), stored=False)


@contextmanager
def open_exclusive(place: Place) -> Iterator[CheckedGeneration]:
    """The published generation, while no other process can publish."""
    storage = existing_storage(place)
    lock = PublishLock(storage)
    try:
        yield open_checked(storage, read_manifest(storage))
    finally:
        lock.release()


@contextmanager
def leased_manifest(place: Place) -> Iterator[Manifest | None]:
    """The manifest of the published generation; its files are not removed inside the `with` block."""
    storage = storage_at(place)
    for _ in range(_ATTEMPTS):
        manifest = retrying(lambda: read_manifest(storage))
        if manifest is None:
            yield None
            return
        lease = Lease(storage, manifest.generation)
        try:
            # Check again now that the lease exists: a writer that published before it may not have seen it.
            latest = retrying(lambda: read_manifest(storage))
            if latest is not None and latest.generation == manifest.generation:
                yield manifest
                return
        finally:
            lease.release()
    raise CacheError(f"{storage.path}: was republished {_ATTEMPTS} times while it was being opened")


def existing_storage(place: Place) -> Storage:
    storage = storage_at(place)
    if not storage.exists():
        raise CacheError(f"{storage.path}: no such cache")
    return storage
