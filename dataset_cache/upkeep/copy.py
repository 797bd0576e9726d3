"""Copies of a cache in a new folder: its current samples only, with whole shards as hard links if possible."""

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from ..errors import CacheError
from ..format import MANIFEST, SHARDS, ShardFile, blob_table, link_or_copy, prune, read_manifest, sync_folder
from ..write import (
    CheckedGeneration,
    PublishLock,
    Rewrite,
    existing_folder,
    leased_manifest,
    open_checked,
    plan_rewrite,
    publish,
    wasteful_shards,
    write_packing,
)

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class CopyReport:
    """The result of a copy. `linked` shards use no extra space: both caches share the files."""

    source: Path
    destination: Path
    generation: str
    samples: int
    bytes: int
    shards: int
    linked: int

    def __str__(self) -> str:
        return (
            f"Wrote {self.samples:,} samples in {self.shards:,} shards ({self.bytes / 1e6:,.1f} MB, "
            f"{self.linked:,} shards linked) to {self.destination.name}"
        )


def export(path: str | Path, destination: str | Path, progress: Progress | None = None) -> CopyReport:
    """Copy a cache with its id, so that what is known about the sources of one is known for the other."""
    return _copy(path, destination, None, progress)


def duplicate(path: str | Path, destination: str | Path, progress: Progress | None = None) -> CopyReport:
    """Copy a cache as an independent one with a new id."""
    return _copy(path, destination, secrets.token_hex(16), progress)


def require_new(destination: str | Path) -> Path:
    """A folder without a cache in it."""
    folder = Path(destination)
    if folder.exists() and not folder.is_dir():
        raise CacheError(f"{folder}: is a file; a cache is a folder")
    if read_manifest(folder) is not None:
        raise CacheError(f"{folder}: already contains a cache; choose another folder")
    return folder


def free_name(name: str, is_free: Callable[[str], bool], numbered: Callable[[int], str] | None = None) -> str:
    """`name`, or the first free one of `name-2`, `name-3`, … or of what `numbered` returns for 2, 3, …"""
    candidates = (numbered(number) if numbered else f"{name}-{number}" for number in count(2))
    return name if is_free(name) else next(filter(is_free, candidates))


def _copy(source: str | Path, destination: str | Path, new_id: str | None, progress: Progress | None) -> CopyReport:
    folder, target = existing_folder(source), require_new(destination)
    if os.path.realpath(folder) in map(os.path.realpath, target.absolute().parents):
        raise CacheError(f"{target}: is inside the cache itself; choose a folder outside it")
    with leased_manifest(folder) as manifest:
        current = open_checked(folder, manifest)
        lock = PublishLock(target)
        try:
            return _write(current, target, new_id, progress)
        finally:
            lock.release()


def _write(current: CheckedGeneration, target: Path, new_id: str | None, progress: Progress | None) -> CopyReport:
    rewrite = _compacted(current)
    new = {shard.file.file for shard in rewrite.packing.shards}
    whole = [shard for shard in rewrite.shards if shard.file not in new]
    total, before = sum(shard.bytes for shard in rewrite.shards), sum(shard.bytes for shard in whole)
    linked = _link_shards(current.folder, target, whole, lambda done: progress(done, total) if progress else None)
    write_packing(
        target,
        rewrite.packing,
        current.files.file,
        lambda done, _: progress(before + done, total) if progress else None,
    )
    changes = {} if new_id is None else {"id": new_id}
    draft = current.successor(rewrite.arrays, rewrite.shards, rewrite.next_shard, **changes)
    published = publish(target, rewrite.arrays, draft)
    return CopyReport(
        source=current.folder,
        destination=target,
        generation=published.generation,
        samples=published.counts["samples"],
        bytes=total + published.index_bytes,
        shards=len(published.shards),
        linked=linked,
    )


def _compacted(current: CheckedGeneration) -> Rewrite:
    """The generation without unused entries; fully used shards are kept."""
    manifest = current.manifest
    everything = np.ones(len(current.arrays.samples), bool)
    arrays = prune(current.arrays, len(manifest.fields), everything, current.used)
    table = blob_table(arrays)
    wasteful = wasteful_shards(current.files, table)
    return plan_rewrite(arrays, table, manifest.shards, wasteful, manifest.next_shard, current.files.file)


def _link_shards(source: Path, target: Path, shards: Sequence[ShardFile], advance: Callable[[int], None]) -> int:
    """Link or copy these shards to the destination. Returns the number of links."""
    folder = target / SHARDS
    linked = done = 0
    try:
        folder.mkdir(exist_ok=True)
        for shard in shards:
            (folder / shard.file).unlink(missing_ok=True)  # left by an interrupted copy
            linked += link_or_copy(source / SHARDS / shard.file, folder / shard.file)
            done += shard.bytes
            advance(done)
        sync_folder(folder)
    except OSError as error:
        raise CacheError(f"{target}: cannot be written: {error.strerror}; it has no {MANIFEST} yet") from error
    return linked
