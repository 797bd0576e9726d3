"""The published generation opened for upkeep: checked through and through, and followed by a successor."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CacheError
from ..format import (
    MANIFEST,
    BlobTable,
    Index,
    IndexArrays,
    Manifest,
    ShardFile,
    blob_table,
    bucket_table,
    find_keys,
    open_index,
    read_manifest,
    used_entries,
)
from ..read import Lease, ShardFiles
from .checked import inconsistency
from .publisher import PublisherLock

_ATTEMPTS = 10


@dataclass(frozen=True)
class Current:
    """A generation whose index was compared with its hash and found consistent."""

    folder: Path
    manifest: Manifest
    index: Index

    @property
    def arrays(self) -> IndexArrays:
        return self.index.arrays

    @cached_property
    def table(self) -> BlobTable:
        return blob_table(self.arrays)

    @cached_property
    def files(self) -> ShardFiles:
        return ShardFiles(self.folder, self.manifest.shards)

    @cached_property
    def used(self) -> np.ndarray:
        """A mask of the entries that a sample or a name uses."""
        named = find_keys(self.arrays.entries, map(bytes.fromhex, self.manifest.named.values()))
        return used_entries(self.arrays, len(self.manifest.fields), named)

    def successor(
        self,
        arrays: IndexArrays,
        shards: Sequence[ShardFile],
        next_shard: int,
        named: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> Manifest:
        """The manifest of the generation that these arrays and shards make, but for the index's size and hash."""
        manifest = self.manifest
        named = dict(manifest.named if named is None else named)
        by_name = find_keys(arrays.entries, {bytes.fromhex(key) for key in named.values()})
        used = used_entries(arrays, len(manifest.fields), by_name)
        counts = {"samples": len(arrays.samples), "entries": len(arrays.entries), "unused": int((~used).sum())}
        numbers = {(b["dtype"], tuple(b["shape"])): n for n, b in enumerate(manifest.buckets)}
        return replace(
            manifest,
            shards=tuple(shards),
            next_shard=next_shard,
            named=named,
            counts={**manifest.counts, **counts},
            buckets=bucket_table(numbers, arrays.samples),
            **changes,
        )


def open_current(folder: Path, manifest: Manifest | None) -> Current:
    """Open what is published, with every check that needs no tensor bytes."""
    if manifest is None:
        raise CacheError(f"{folder}: holds no {MANIFEST}, so it is no StreamCache dataset or was never published")
    remedy = "restore it from a copy, or remove the dataset and save it again"
    try:
        index = open_index(folder, manifest, check=True)
    except CacheError as error:
        raise CacheError(f"{folder}: its index cannot be used: {error}; {remedy}") from error
    wrong = inconsistency(manifest, index.arrays)
    if wrong is not None:
        raise CacheError(f"{folder / manifest.index_name}: {wrong}; {remedy}")
    return Current(folder, manifest, index)


@contextmanager
def exclusive(path: str | Path) -> Iterator[Current]:
    """The published generation, while nobody else can publish another."""
    folder = existing(path)
    lock = PublisherLock(folder)
    try:
        yield open_current(folder, read_manifest(folder))
    finally:
        lock.release()


@contextmanager
def leased(folder: Path) -> Iterator[Manifest | None]:
    """The manifest of the published generation, whose files stay as long as this is held."""
    for _ in range(_ATTEMPTS):
        manifest = read_manifest(folder)
        if manifest is None:
            yield None
            return
        lease = Lease(folder, manifest.generation)
        try:
            # A second look, with the lease in place: what was published before it may not have seen it.
            latest = read_manifest(folder)
            if latest is not None and latest.generation == manifest.generation:
                yield manifest
                return
        finally:
            lease.release()
    raise CacheError(f"{folder}: was published anew {_ATTEMPTS} times while it was being opened")


def existing(path: str | Path) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        raise CacheError(f"{folder}: there is no such dataset")
    return folder
