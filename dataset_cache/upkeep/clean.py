"""Cleaning: what a dataset's folder holds beyond its current samples, counted first, then removed exactly as counted.

Bytes are the sizes of the folder's files as a listing shows them: after cleaning, their sum is smaller by just the
number that the preview said, rewritten shards, index and manifest included.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..errors import CacheBusy, CacheError
from ..format import (
    BUILD,
    MANIFEST,
    SHARDS,
    Manifest,
    blob_table,
    derive,
    index_size,
    prune,
    read_manifest,
    remove_file,
)
from ..read import holders, were_possible
from ..write import (
    CheckedGeneration,
    PublishLock,
    Rewrite,
    current_publisher,
    existing_folder,
    index_generation,
    open_checked,
    open_exclusive,
    plan_rewrite,
    publish,
    remove_superseded,
    small_shards,
    wasteful_shards,
    write_packing,
)
from .contents import Contents, folder_contents, total_bytes

DEBRIS, SUPERSEDED, UNUSED = "debris", "superseded", "unused"
# In the order in which they are removed: publishing without unused entries may make files again that an interrupted
# run left behind, so these must be gone before.
CATEGORIES = {
    DEBRIS: "files that no generation, unfinished build or reader needs",
    SUPERSEDED: "older generations",
    UNUSED: "entries that no sample and no name uses, and what is stored of them",
}
GRACE_SECONDS = 24 * 3600
_UNSEEN = "no reader ever left a lease here and one may read unseen, so generations of the last 24 hours stay"


@dataclass(frozen=True)
class Removal:
    """What goes in one category. `count` is of files, entries or generations."""

    category: str
    count: int = 0
    bytes: int = 0
    files: tuple[str, ...] = ()
    kept: str = ""  # why something that belongs here stays
    held_by: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class CleanPlan:
    """What `clean` would remove from the dataset as it is now."""

    path: Path
    generation: str | None
    removals: tuple[Removal, ...]

    @property
    def bytes(self) -> int:
        return sum(removal.bytes for removal in self.removals)


def preview_clean(path: str | Path, categories: Iterable[str] = tuple(CATEGORIES)) -> CleanPlan:
    """Count what could go, category by category. Nothing is changed."""
    folder = existing_folder(path)
    return _plan(folder, _checked(categories), publishing=current_publisher(folder) is not None)


def clean(what: CleanPlan | str | Path, categories: Iterable[str] | None = None) -> CleanPlan:
    """Remove exactly what a plan lists, or what these categories hold now. Returns the plan that was carried out.

    Refused, before anything is removed, while somebody writes, while a lease on something listed is held, and if the
    dataset is no longer as the plan found it.
    """
    expected = what if isinstance(what, CleanPlan) else None
    folder = existing_folder(what.path if expected else what)
    if expected is None and categories is None:
        raise CacheError(f"{folder}: say what to remove: {', '.join(CATEGORIES)}")
    wanted = [removal.category for removal in expected.removals] if expected else _checked(categories)
    lock = PublishLock(folder)
    try:
        plan = _plan(folder, wanted, publishing=False)
        if expected is not None and plan != replace(expected, path=folder):
            raise CacheError(f"{folder}: has changed since the preview; look at it again")
        _refuse_if_held(plan)
        for removal in plan.removals:
            if removal.category == UNUSED and removal.files:
                _rewrite(folder)
            _remove(folder, removal)
        return plan
    finally:
        lock.release()


def _checked(categories: Iterable[str]) -> list[str]:
    wanted = list(categories)
    unknown = [name for name in wanted if name not in CATEGORIES]
    if unknown:
        raise CacheError(f"{unknown[0]!r} cannot be cleaned; one of {', '.join(CATEGORIES)} is expected")
    return [name for name in CATEGORIES if name in wanted]


def _plan(folder: Path, categories: Sequence[str], publishing: bool) -> CleanPlan:
    manifest = read_manifest(folder)
    found = folder_contents(folder, manifest, publishing)
    removals = []
    for category in categories:
        if category == DEBRIS:
            removals.append(_removal(folder, DEBRIS, len(found.debris), found.debris))
        elif category == SUPERSEDED:
            removals.append(_superseded(folder, found))
        else:
            removals.append(_unused(folder, manifest, found) if manifest else Removal(UNUSED))
    return CleanPlan(folder, manifest.generation if manifest else None, tuple(removals))


def _removal(folder: Path, category: str, count: int, paths: Sequence[Path]) -> Removal:
    names = tuple(path.relative_to(folder).as_posix() for path in paths)
    return Removal(category, count, total_bytes(paths), names)


def _superseded(folder: Path, found: Contents) -> Removal:
    young = _young(folder, found.old_indexes)
    going = [path for path in found.old_indexes if path not in young]
    # Which shards a kept generation reads is not known: with one of them, all shards stay.
    paths = going if young else found.superseded
    removal = _removal(folder, SUPERSEDED, len(going), paths)
    held_by = _holders(folder, {index_generation(path) for path in found.old_indexes})
    return replace(removal, kept=_UNSEEN if young else "", held_by=held_by)


def _unused(folder: Path, manifest: Manifest, found: Contents) -> Removal:
    current = open_checked(folder, manifest)
    pruned = _without_unused(current, found)
    if pruned is None:
        return Removal(UNUSED)
    if _young(folder, [folder / manifest.index_name, *found.old_indexes]):
        return Removal(UNUSED, kept=_UNSEEN)
    rewrite, draft = pruned
    listed = {shard.file for shard in rewrite.shards}
    gone = [folder / SHARDS / shard.file for shard in manifest.shards if shard.file not in listed]
    before = [folder / MANIFEST, folder / manifest.index_name, *gone]
    size = index_size(derive(rewrite.arrays, len(manifest.fields)))
    new_manifest = replace(draft, index_bytes=size, index_hash=manifest.index_hash).to_json()
    after = size + len(new_manifest) + sum(shard.file.bytes for shard in rewrite.packing.shards)
    removal = _removal(folder, UNUSED, int((~current.used).sum()), [folder / manifest.index_name, *gone])
    # Readers of an older generation may read the same shards.
    held_by = tuple(map(str, holders(folder)))
    return replace(removal, bytes=total_bytes(before) - after, held_by=held_by)


def _without_unused(current: CheckedGeneration, found: Contents) -> tuple[Rewrite, Manifest] | None:
    """The generation without unused entries, in shards without what nothing refers to; None if it is so already."""
    manifest = current.manifest
    everything = np.ones(len(current.arrays.samples), bool)
    arrays = prune(current.arrays, len(manifest.fields), everything, current.used)
    table = blob_table(arrays)
    wasteful = [n for n in wasteful_shards(current.files, table) if manifest.shards[n].file not in found.protected]
    if current.used.all() and not wasteful:
        return None
    rewrite = plan_rewrite(arrays, table, manifest.shards, wasteful, manifest.next_shard, current.files.file)
    return rewrite, current.successor(rewrite.arrays, rewrite.shards, rewrite.next_shard)


def _rewrite(folder: Path) -> None:
    """Publish the generation without unused entries. Nothing is removed here, and nothing of the old one stays open."""
    manifest = read_manifest(folder)
    current = open_checked(folder, manifest)
    rewrite, draft = _without_unused(current, folder_contents(folder, manifest, publishing=False))
    write_packing(folder, rewrite.packing, current.files.file)
    published = publish(folder, rewrite.arrays, draft)
    # A reader may have come while shards were written. It keeps what it opened; that goes as superseded, later.
    late = [holder for holder in holders(folder) if holder.generation != published.generation]
    if late:
        raise CacheBusy(f"{folder}: {late[0]} opened it meanwhile; clean {SUPERSEDED} generations when it is done")


def _refuse_if_held(plan: CleanPlan) -> None:
    for removal in plan.removals:
        if removal.held_by and removal.files:
            raise CacheBusy(
                f"{plan.path}: {removal.category}: {removal.held_by[0]} reads what would be removed; "
                "close it there, or clean the other categories"
            )


def _remove(folder: Path, removal: Removal) -> None:
    manifest = read_manifest(folder)
    needed = set(folder_contents(folder, manifest, publishing=False).current)
    assert not needed & {folder / name for name in removal.files}, "what is published is never removed"
    held = [name for name in removal.files if not remove_file(folder / name)]
    for parent in {(folder / name).parent for name in removal.files if name.startswith(f"{BUILD}/")}:
        _remove_empty(parent, folder)
    if held:
        raise CacheBusy(f"{folder / held[0]}: is held open by another program; close it there and clean again")


def _remove_empty(parent: Path, folder: Path) -> None:
    while parent != folder and parent.is_dir() and not any(parent.iterdir()):
        os.rmdir(parent)
        parent = parent.parent


def _holders(folder: Path, generations: Iterable[str | None]) -> tuple[str, ...]:
    wanted = set(generations)
    return tuple(str(holder) for holder in holders(folder) if holder.generation in wanted)


def _young(folder: Path, indexes: Sequence[Path]) -> list[Path]:
    """The recent generations among these, where readers could leave no leases: somebody may be reading unseen."""
    if were_possible(folder):
        return []
    return [path for path in indexes if time.time() - path.stat().st_mtime < GRACE_SECONDS]


@dataclass(frozen=True)
class CompactReport:
    """What compaction made of the shards."""

    path: Path
    generation: str
    shards: tuple[int, int]  # before and after
    bytes: tuple[int, int]

    def __str__(self) -> str:
        (few, fewer), (large, small) = self.shards, self.bytes
        return f"{self.path.name}: {few:,} → {fewer:,} shards, {large / 1e6:,.1f} → {small / 1e6:,.1f} MB"


def compact(path: str | Path, progress: Callable[[int, int], None] | None = None) -> CompactReport:
    """Leave blobs behind that nothing refers to, and merge small shards. Samples and entries stay as they are.

    The old files go at once, or when the last reader of the old generation is done. `progress` is called with (bytes
    written, bytes in all).
    """
    with open_exclusive(path) as current:
        before = published = current.manifest
        # An unfinished build names shards that it shares blobs with, or has moved here already: they must stay.
        protected = folder_contents(current.folder, before, publishing=False).protected
        victims = [n for n in _worth_rewriting(current) if before.shards[n].file not in protected]
        if victims:
            source = current.files.file
            rewrite = plan_rewrite(current.arrays, current.table, before.shards, victims, before.next_shard, source)
            write_packing(current.folder, rewrite.packing, source, progress)
            draft = current.successor(rewrite.arrays, rewrite.shards, rewrite.next_shard)
            published = publish(current.folder, rewrite.arrays, draft)
            remove_superseded(current.folder, published, keep=protected)
        sizes = tuple(sum(shard.bytes for shard in manifest.shards) for manifest in (before, published))
        return CompactReport(current.folder, published.generation, (len(before.shards), len(published.shards)), sizes)


def _worth_rewriting(current: CheckedGeneration) -> set[int]:
    shards = current.manifest.shards
    victims = set(wasteful_shards(current.files, current.table))
    by_kind: dict[str, list[int]] = {}
    for number in small_shards(current.table, shards):
        by_kind.setdefault(shards[number].file[0], []).append(number)
    victims.update(number for numbers in by_kind.values() if len(numbers) > 1 for number in numbers)
    return victims
