"""Copies of a cache in a new folder: its current samples only, with whole shards as hard links if possible."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np

from ...errors import CacheError
from ...quantity import byte_count, plural
from ..address import Address, is_inside
from ..format import MANIFEST, SHARDS, Place, ShardFile, Storage, read_manifest, storage_at
from ..index import blob_table, index_in_memory, prune
from ..write import (
    CheckedGeneration,
    PublishLock,
    Rewrite,
    existing_storage,
    leased_manifest,
    open_checked,
    plan_rewrite,
    publish,
    refuse_foreign_folder,
    wasteful_shards,
    write_packing,
)
from .shard_state import examine_shards

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class CopyReport:
    """The result of a copy. `linked` shards use no extra space: both caches share the files."""

    source: Path | Address
    destination: Path | Address
    generation: str
    samples: int
    bytes: int
    shards: int
    linked: int

    def __str__(self) -> str:
        return (
            f"Wrote {plural(self.samples, 'sample')} in {plural(self.shards, 'shard')} ({byte_count(self.bytes)}, "
            f"{plural(self.linked, 'shard')} linked) to {self.destination.name}"
        )


def export(path: Place, destination: Place, progress: Progress | None = None) -> CopyReport:
    """Copy a cache with its id, so that what is known about the sources of one is known for the other."""
    return _copy(path, destination, None, progress)


def duplicate(path: Place, destination: Place, progress: Progress | None = None) -> CopyReport:
    """Copy a cache as an independent one with a new id."""
    return _copy(path, destination, secrets.token_hex(16), progress)


def require_new(destination: Place) -> Storage:
    """A folder without a cache in it."""
    storage = storage_at(destination)
    if storage.stat("") is not None and not storage.exists():
        raise CacheError(f"{storage.path}: is a file; a cache is a folder")
    if read_manifest(storage) is not None:
        raise CacheError(f"{storage.path}: already contains a cache; choose another folder")
    refuse_foreign_folder(storage)
    return storage


def free_name(name: str, is_free: Callable[[str], bool], numbered: Callable[[int], str] | None = None) -> str:
    """`name`, or the first free one of `name-2`, `name-3`, … or of what `numbered` returns for 2, 3, …"""
    candidates = (numbered(number) if numbered else f"{name}-{number}" for number in count(2))
    return name if is_free(name) else next(filter(is_free, candidates))


def _copy(place: Place, destination: Place, new_id: str | None, progress: Progress | None) -> CopyReport:
    source, target = existing_storage(place), require_new(destination)
    if is_inside(target.path, source.path):
        raise CacheError(f"{target.path}: is inside the cache itself; choose a folder outside it")
    with leased_manifest(source) as manifest:
        current = open_checked(source, manifest)
        lock = PublishLock(target)
        try:
            return _write(current, target, new_id, progress)
        finally:
            lock.release()


def _write(current: CheckedGeneration, target: Storage, new_id: str | None, progress: Progress | None) -> CopyReport:
    rewrite = _compacted(current)
    new = {shard.file.file for shard in rewrite.packing.shards}
    whole = [shard for shard in rewrite.shards if shard.file not in new]
    total, before = sum(shard.bytes for shard in rewrite.shards), sum(shard.bytes for shard in whole)
    linked = link_shards(current.storage, target, whole, lambda done: progress(done, total) if progress else None)
    write_packing(
        target,
        rewrite.packing,
        current.files.file,
        lambda done, _: progress(before + done, total) if progress else None,
    )
    draft = current.successor(rewrite.arrays, rewrite.shards, rewrite.next_shard)
    if current.storage.is_remote:
        index = index_in_memory(rewrite.arrays, len(draft.fields))
        _refuse_damage(CheckedGeneration(target, draft, index, stored=False))
    published = publish(target, rewrite.arrays, replace(draft, id=new_id or draft.id))
    return CopyReport(
        source=current.folder,
        destination=target.path,
        generation=published.generation,
        samples=published.counts["samples"],
        bytes=total + published.whole_index_bytes,
        shards=len(published.shards),
        linked=linked,
    )


def _refuse_damage(copied: CheckedGeneration) -> None:
    """What came over a network is compared with its hashes before anything is published."""
    for shard, state in zip(copied.manifest.shards, examine_shards(copied, None), strict=True):
        if state.problem is not None or len(state.damaged):
            raise CacheError(
                f"{copied.folder / SHARDS / shard.file}: came damaged; nothing was published: push the dataset to its "
                "address again, then repeat this"
            )


def _compacted(current: CheckedGeneration) -> Rewrite:
    """The generation without unused entries; fully used shards are kept."""
    manifest = current.manifest
    everything = np.ones(len(current.arrays.samples), bool)
    arrays = prune(current.arrays, len(manifest.fields), everything, current.used)
    table = blob_table(arrays)
    wasteful = wasteful_shards(current.files, table)
    return plan_rewrite(arrays, table, manifest.shards, wasteful, manifest.next_shard, current.files.file)


def link_shards(
    source: Storage, target: Storage, shards: Sequence[ShardFile], advance: Callable[[int], None] = lambda done: None
) -> int:
    """Link or copy these shards to the destination. Returns the number of links."""
    linked = done = 0
    try:
        target.make_folder(SHARDS)
        for shard in shards:
            name = f"{SHARDS}/{shard.file}"
            target.remove(name)  # left by an interrupted copy
            linked += source.link_or_copy(name, target, name)
            done += shard.bytes
            advance(done)
        target.sync(SHARDS)
    except OSError as error:
        raise CacheError(f"{target.path}: cannot be written: {error.strerror}; it has no {MANIFEST} yet") from error
    return linked
