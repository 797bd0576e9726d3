"""Clean and compact: remove from a cache's folder what its current samples do not need.

A preview counts it, and cleaning removes exactly that. Bytes are file sizes as a listing shows them: after cleaning,
their sum is smaller by the previewed number, with rewritten shards, index and manifest included.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CacheBusy, CacheError
from ...quantity import byte_count, plural
from ..address import Address
from ..format import BUILD, MANIFEST, SHARDS, Manifest, Place, Storage, index_generation, read_manifest
from ..index import blob_table, derive, index_size, prune
from ..read import holders
from ..write import (
    CheckedGeneration,
    PublishLock,
    Rewrite,
    current_publisher,
    existing_storage,
    in_grace,
    needed_indexes,
    open_checked,
    open_exclusive,
    plan_rewrite,
    publish,
    remove_superseded,
    small_shards,
    wasteful_shards,
    with_more_blobs,
    write_packing,
)
from .contents import Contents, folder_contents, total_bytes

DEBRIS, SUPERSEDED, UNUSED, MISSING = "debris", "superseded", "unused", "missing"


@dataclass(frozen=True)
class Category:
    """How a category is shown: what it contains, one and several, and a text that explains it."""

    one: str
    several: str
    text: str

    def count(self, count: int) -> str:
        return f"1 {self.one}" if count == 1 else f"{count:,} {self.several}"


# In the order of removal: debris goes first, because publishing without unused entries may write files of the same name
# as those that an interrupted run left behind.
CATEGORIES = {
    DEBRIS: Category(
        "leftover file", "leftover files", "Leftover files, which no generation, unfinished save or reader needs"
    ),
    SUPERSEDED: Category("older generation", "older generations", "Older generations that no reader uses"),
    UNUSED: Category(
        "unused entry",
        "unused entries",
        "Encoded images and captions that no sample uses now, such as those at another resolution",
    ),
    MISSING: Category(
        "entry of missing folders",
        "entries of missing folders",
        "Unused entries while source folders are missing; they would be encoded again when these are back",
    ),
}
_RUN = "encode"  # what encoding recorded, in the provenance
_NO_LEASES = "readers cannot register here (read-only folder?), so generations of the last 24 hours are kept"


@dataclass(frozen=True)
class Removal:
    """What is removed in one category. `count` counts files, entries or generations."""

    category: str
    count: int = 0
    bytes: int = 0
    files: tuple[str, ...] = ()
    kept: str = ""  # why some of this category is kept
    held_by: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class CleanPlan:
    """What `clean` would remove from the cache in its current state."""

    storage: Storage
    generation: str | None
    removals: tuple[Removal, ...]

    @property
    def path(self) -> Path | Address:
        return self.storage.path

    @property
    def bytes(self) -> int:
        return sum(removal.bytes for removal in self.removals)


def preview_clean(path: Place, categories: Iterable[str] = tuple(CATEGORIES)) -> CleanPlan:
    """Count what could be removed, by category. Nothing is changed."""
    storage = existing_storage(path)
    return _plan(storage, _checked(categories), publishing=current_publisher(storage) is not None)


def clean(what: CleanPlan | Place, categories: Iterable[str] | None = None) -> CleanPlan:
    """Remove exactly what a plan lists, or the current contents of these categories. Returns the plan carried out.

    Refused, before anything is removed, while another process writes or holds a lease on a listed file, and if the
    cache has changed since the plan was made.
    """
    expected = what if isinstance(what, CleanPlan) else None
    storage = existing_storage(what.storage if isinstance(what, CleanPlan) else what)
    if expected is None and categories is None:
        raise CacheError(f"{storage.path}: choose what to remove: {', '.join(CATEGORIES)}")
    wanted = [removal.category for removal in expected.removals] if expected else _checked(categories or ())
    lock = PublishLock(storage)
    try:
        plan = _plan(storage, wanted, publishing=False)
        if expected is not None and plan != expected:
            raise CacheError(f"{storage.path}: has changed since the preview; preview it again")
        _refuse_if_held(plan)
        for removal in plan.removals:
            if removal.category in (UNUSED, MISSING) and removal.files:
                _rewrite(storage)
            _remove(storage, removal)
        return plan
    finally:
        lock.release()


def _checked(categories: Iterable[str]) -> list[str]:
    wanted = list(categories)
    unknown = [name for name in wanted if name not in CATEGORIES]
    if unknown:
        raise CacheError(f"unknown category {unknown[0]!r}; expected one of {', '.join(CATEGORIES)}")
    return [name for name in CATEGORIES if name in wanted]


def _plan(storage: Storage, categories: Sequence[str], publishing: bool) -> CleanPlan:
    manifest = read_manifest(storage)
    found = folder_contents(storage, manifest, publishing)
    removals = []
    for category in categories:
        if category == MISSING and not missing_folders(manifest):
            continue
        if category == DEBRIS:
            removals.append(_removal(storage, DEBRIS, len(found.debris), found.debris))
        elif category == SUPERSEDED:
            removals.append(_superseded(storage, manifest, found))
        else:
            removals.append(_unused(storage, manifest, found, category) if manifest else Removal(category))
    return CleanPlan(storage, manifest.generation if manifest else None, tuple(removals))


def _removal(storage: Storage, category: str, count: int, names: Sequence[str]) -> Removal:
    return Removal(category, count, total_bytes(storage, names), tuple(names))


def _superseded(storage: Storage, manifest: Manifest | None, found: Contents) -> Removal:
    current = manifest.index_names if manifest else []
    kept = needed_indexes(storage, in_grace(storage, [*current, *found.old_indexes]))
    recent = [name for name in found.old_indexes if name in kept]
    going = [name for name in found.old_indexes if name not in recent]
    # Which shards a kept generation reads is unknown, so all are kept with it.
    names = going if recent else found.superseded
    removal = _removal(storage, SUPERSEDED, len(going), names)
    held_by = _holders(storage, {index_generation(name) for name in found.old_indexes})
    return replace(removal, kept=_NO_LEASES if recent else "", held_by=held_by)


def missing_folders(manifest: Manifest | None) -> dict[str, int]:
    """Folders that were missing when the cache was last encoded, with the samples that they had before."""
    run = manifest.provenance.get(_RUN) if manifest is not None else None
    found = run.get(MISSING) if isinstance(run, dict) else None
    rows = found.items() if isinstance(found, dict) else ()
    return {folder: count for folder, count in rows if type(count) is int}


def _without_missing(provenance: dict[str, Any]) -> dict[str, Any]:
    run = provenance.get(_RUN)
    if not isinstance(run, dict) or MISSING not in run:
        return provenance
    return {**provenance, _RUN: {name: value for name, value in run.items() if name != MISSING}}


def _unused(storage: Storage, manifest: Manifest, found: Contents, category: str) -> Removal:
    """Unused entries; as `missing` while folders are missing, because theirs cannot be told from the others."""
    folders = missing_folders(manifest)
    current = open_checked(storage, manifest)
    pruned = _without_unused(current, found)
    if pruned is None:
        return Removal(category)
    if category == UNUSED and folders:
        names = f"{', '.join(folders)} {'was' if len(folders) == 1 else 'were'}"
        choice = CATEGORIES[MISSING].several
        return Removal(UNUSED, kept=f'{names} missing at the last encode; to remove them, choose "{choice}"')
    if in_grace(storage, [*manifest.index_names, *found.old_indexes]):
        return Removal(category, kept=_NO_LEASES)
    rewrite, draft = pruned
    listed = {shard.file for shard in rewrite.shards}
    gone = [f"{SHARDS}/{shard.file}" for shard in manifest.shards if shard.file not in listed]
    size = index_size(rewrite.arrays, derive(rewrite.arrays, len(manifest.fields)))
    new_manifest = replace(draft, index_bytes=size, index_hash=manifest.index_hash).to_json()
    before = total_bytes(storage, [MANIFEST, *manifest.index_names, *gone])
    after = size + len(new_manifest) + sum(shard.file.bytes for shard in rewrite.packing.shards)
    removal = _removal(storage, category, int((~current.used).sum()), [*manifest.index_names, *gone])
    # Readers of an older generation may read the same shards.
    held_by = tuple(map(str, holders(storage)))
    return replace(removal, bytes=before - after, held_by=held_by)


def _without_unused(current: CheckedGeneration, found: Contents) -> tuple[Rewrite, Manifest] | None:
    """The generation without unused entries, in shards without unreferenced blobs; None if nothing would change."""
    manifest = current.manifest
    if current.used.all() and not _has_waste(current, found):
        return None
    everything = np.ones(len(current.arrays.samples), bool)
    arrays = prune(current.arrays, len(manifest.fields), everything, current.used)
    table = blob_table(arrays)
    wasteful = [n for n in wasteful_shards(current.files, table) if manifest.shards[n].file not in found.protected]
    rewrite = plan_rewrite(arrays, table, manifest.shards, wasteful, manifest.next_shard, current.files.file)
    # Without unused entries, those of missing folders are gone too.
    provenance = _without_missing(manifest.provenance)
    return rewrite, current.successor(rewrite.arrays, rewrite.shards, rewrite.next_shard, provenance=provenance)


def _has_waste(current: CheckedGeneration, found: Contents) -> bool:
    """Whether a shard that may be rewritten has a blob that no entry needs."""
    counts = [np.bincount(table.shards - shards.start, minlength=len(shards)) for shards, table in current.tables()]
    wasteful = with_more_blobs([int(count) for group in counts for count in group], current.files.file)
    return any(current.manifest.shards[number].file not in found.protected for number in wasteful)


def _rewrite(storage: Storage) -> None:
    """Publish the generation without unused entries. Removes nothing, and leaves no file of the old one open."""
    manifest = read_manifest(storage)
    current = open_checked(storage, manifest)
    pruned = _without_unused(current, folder_contents(storage, manifest, publishing=False))
    if pruned is None:
        raise CacheError(f"{storage.path}: has changed since the preview; preview it again")
    rewrite, draft = pruned
    write_packing(storage, rewrite.packing, current.files.file)
    published = publish(storage, rewrite.arrays, draft)
    # A reader may have opened the old generation meanwhile. It keeps its files; they can be cleaned as superseded.
    late = [holder for holder in holders(storage) if holder.generation != published.generation]
    if late:
        raise CacheBusy(f"{storage.path}: {late[0]} opened it meanwhile; clean older generations later")


def _refuse_if_held(plan: CleanPlan) -> None:
    for removal in plan.removals:
        if removal.held_by and removal.files:
            raise CacheBusy(
                f"{plan.path}: {removal.category}: {removal.held_by[0]} reads files that would be removed; "
                "close it there, or clean the other categories"
            )


def _remove(storage: Storage, removal: Removal) -> None:
    manifest = read_manifest(storage)
    needed = set(folder_contents(storage, manifest, publishing=False).current)
    if needed & set(removal.files):
        raise CacheError(f"{storage.path}: its published files have changed since the preview; preview it again")
    held = [name for name in removal.files if not storage.remove(name)]
    for parent in {name.rpartition("/")[0] for name in removal.files if name.startswith(f"{BUILD}/")}:
        _remove_empty(storage, parent)
    if held:
        raise CacheBusy(f"{storage.path / held[0]}: another program has it open; close it there and clean again")


def _remove_empty(storage: Storage, folder: str) -> None:
    while folder:
        storage.remove_folder(folder)
        folder = folder.rpartition("/")[0]


def _holders(storage: Storage, generations: Iterable[str | None]) -> tuple[str, ...]:
    wanted = set(generations)
    return tuple(str(holder) for holder in holders(storage) if holder.generation in wanted)


@dataclass(frozen=True)
class CompactReport:
    """The shards before and after compaction."""

    path: Path | Address
    generation: str
    shards: tuple[int, int]  # before and after
    bytes: tuple[int, int]

    def __str__(self) -> str:
        (few, fewer), (large, small) = self.shards, self.bytes
        if self.shards[0] == self.shards[1] and large == small:
            return f"{self.path.name}: nothing to compact ({plural(few, 'shard')}, {byte_count(large)})"
        return f"{self.path.name}: {few:,} → {plural(fewer, 'shard')}, {byte_count(large)} → {byte_count(small)}"


def compact(path: Place, progress: Callable[[int, int], None] | None = None) -> CompactReport:
    """Merge small shards and index files, and drop blobs that nothing refers to. Samples and entries are unchanged.

    The old files are removed now, or once the last reader of the old generation has finished. `progress` is called with
    (bytes written, total bytes).
    """
    with open_exclusive(path) as current:
        before = published = current.manifest
        # An unfinished build refers to these shards, or has moved them here already.
        protected = folder_contents(current.storage, before, publishing=False).protected
        chosen = [n for n in _worth_rewriting(current) if before.shards[n].file not in protected]
        if chosen or before.segments:
            source = current.files.file
            rewrite = plan_rewrite(current.arrays, current.table, before.shards, chosen, before.next_shard, source)
            write_packing(current.storage, rewrite.packing, source, progress)
            draft = current.successor(rewrite.arrays, rewrite.shards, rewrite.next_shard)
            published = publish(current.storage, rewrite.arrays, draft)
            remove_superseded(current.storage, published, keep=protected)
        return CompactReport(
            path=current.folder,
            generation=published.generation,
            shards=(len(before.shards), len(published.shards)),
            bytes=(_shard_bytes(before), _shard_bytes(published)),
        )


def _shard_bytes(manifest: Manifest) -> int:
    return sum(shard.bytes for shard in manifest.shards)


def _worth_rewriting(current: CheckedGeneration) -> set[int]:
    shards = current.manifest.shards
    chosen = set(wasteful_shards(current.files, current.table))
    by_kind: dict[str, list[int]] = {}
    for number in small_shards(current.table, shards):
        by_kind.setdefault(shards[number].file[0], []).append(number)
    chosen.update(number for numbers in by_kind.values() if len(numbers) > 1 for number in numbers)
    return chosen
