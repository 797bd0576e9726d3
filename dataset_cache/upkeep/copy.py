"""Copies of a dataset: its current samples in a folder of their own, whole shards as hard links where possible."""

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    """What was copied. `linked` shards take no further space; they are files of both datasets."""

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
    """The same dataset elsewhere: it keeps its id, so sources that were seen for the one are known for the other."""
    return _copy(path, destination, None, progress)


def duplicate(path: str | Path, destination: str | Path, progress: Progress | None = None) -> CopyReport:
    """A dataset of its own that starts with the same samples."""
    return _copy(path, destination, secrets.token_hex(16), progress)


def require_new(destination: str | Path) -> Path:
    """A folder that holds no dataset yet."""
    folder = Path(destination)
    if folder.exists() and not folder.is_dir():
        raise CacheError(f"{folder}: is a file; a dataset is a folder")
    if read_manifest(folder) is not None:
        raise CacheError(f"{folder}: is a dataset already; name a folder that is none")
    return folder


def _copy(source: str | Path, destination: str | Path, new_id: str | None, progress: Progress | None) -> CopyReport:
    folder, target = existing_folder(source), require_new(destination)
    if os.path.realpath(folder) in map(os.path.realpath, target.absolute().parents):
        raise CacheError(f"{target}: lies inside the dataset itself; name a folder outside of it")
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
    """The generation without unused entries; shards that are used as a whole stay as they are."""
    manifest = current.manifest
    everything = np.ones(len(current.arrays.samples), bool)
    arrays = prune(current.arrays, len(manifest.fields), everything, current.used)
    table = blob_table(arrays)
    wasteful = wasteful_shards(current.files, table)
    return plan_rewrite(arrays, table, manifest.shards, wasteful, manifest.next_shard, current.files.file)


def _link_shards(source: Path, target: Path, shards: Sequence[ShardFile], advance: Callable[[int], None]) -> int:
    """Give the destination these shards. Returns how many of them are links."""
    folder = target / SHARDS
    linked = done = 0
    try:
        folder.mkdir(exist_ok=True)
        for shard in shards:
            (folder / shard.file).unlink(missing_ok=True)  # left by a copy that was interrupted
            linked += link_or_copy(source / SHARDS / shard.file, folder / shard.file)
            done += shard.bytes
            advance(done)
        sync_folder(folder)
    except OSError as error:
        raise CacheError(f"{target}: cannot be written: {error.strerror}; it has no {MANIFEST} yet") from error
    return linked
