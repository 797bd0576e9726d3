"""push, pull and sync: a generation goes from one place to another, whole or not at all."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...errors import CacheBusy, CacheError
from ...quantity import byte_count, plural
from ..address import is_inside, is_same_place
from ..format import MANIFEST, SHARDS, Manifest, Place, Storage, storage_at
from ..upkeep import INCOMING, folder_contents
from ..write import (
    GRACE_SECONDS,
    PublishLock,
    current_publisher,
    leased_manifest,
    refuse_foreign_files,
    remove_superseded,
)
from .cargo import Cargo, cargo_of
from .carrying import Meter, Progress, carry, find_damaged
from .landing import Landing, landing_in
from .sides import AHEAD, APART, BEHIND, SAME, Side, compare, look_at, remember_common
from .superseded import Pruned, note_superseded, prune

KEEP = ("local", "remote")


@dataclass(frozen=True)
class Travel:
    """How a generation travels. `verify` reads what the other side has already; `grace` is in seconds."""

    dry_run: bool = False
    verify: bool = False
    prune: bool = False
    grace: float = GRACE_SECONDS
    progress: Progress | None = None


@dataclass(frozen=True)
class TravelReport:
    """What was sent, or would be. `resumed` bytes had arrived before; `replaced` is the generation that was there."""

    action: str  # "push", "pull" or "none"
    source: str
    destination: str
    generation: str
    replaced: str | None
    samples: int
    files: int
    bytes: int
    total_bytes: int
    resumed: int = 0
    pruned: Pruned = field(default_factory=Pruned)
    dry_run: bool = False

    def __str__(self) -> str:
        verb = {"push": ("Pushed", "Would push"), "pull": ("Pulled", "Would pull")}.get(self.action)
        named = f"generation {self.generation[:12]} ({plural(self.samples, 'sample')})"
        if verb is None or not (self.files or self.replaced != self.generation):
            return f"Nothing to do: {self.source} and {self.destination} have {named}"
        resumed = f", {byte_count(self.resumed)} of it had arrived before" if self.resumed else ""
        size = f"{plural(self.files, 'file')}, {byte_count(self.bytes)} of {byte_count(self.total_bytes)}{resumed}"
        return f"{verb[self.dry_run]} {named} from {self.source} to {self.destination}: {size}"


def push(cache: Place, address: Place, how: Travel = Travel()) -> TravelReport:  # noqa: B008 - it is frozen
    """Bring the generation of `cache` to `address`, where it must be a successor of what is there, or the first."""
    near, far = _sides(cache, address)
    if near.manifest is None:
        raise CacheError(f"{near.storage.path}: nothing is published here; save it first, or pull it")
    relation = compare(near, far)
    if relation == BEHIND:
        raise CacheError(f"{far} is newer than {near}, which has not changed since; pull it")
    if relation == APART:
        raise _both_changed(near, far)
    return _bring("push", near, far, near.storage, how)


def pull(address: Place, folder: Place, how: Travel = Travel()) -> TravelReport:  # noqa: B008
    """Bring the generation at `address` to `folder`, where it must be a successor of what is there, or the first."""
    near, far = _sides(folder, address)
    if far.manifest is None:
        raise CacheError(f"{far.storage.path}: nothing is published here; check the address, or push a cache to it")
    relation = compare(near, far)
    if relation == AHEAD:
        raise CacheError(f"{near} is newer than {far}, which has not changed since; push it")
    if relation == APART:
        raise _both_changed(near, far)
    return _bring("pull", far, near, near.storage, how)


def sync(folder: Place, address: Place, keep: str | None = None, how: Travel = Travel()) -> TravelReport:  # noqa: B008
    """Bring the newer generation to the other side. If both have changed, `keep` says which one stays."""
    if keep is not None and keep not in KEEP:
        raise CacheError(f"keep: {keep!r}, expected one of {', '.join(KEEP)}")
    near, far = _sides(folder, address)
    relation = compare(near, far)
    if relation == APART and keep is None:
        raise _both_changed(near, far)
    if keep is not None and relation != SAME:
        relation = AHEAD if keep == "local" else BEHIND
    source, target = (near, far) if relation in (AHEAD, SAME) else (far, near)
    if source.manifest is None:
        raise CacheError(f"{source.storage.path}: nothing is published here, so it cannot be kept")
    if relation == SAME and near.manifest is not None and _missing(near.storage, cargo_of(near.manifest)):
        source, target = far, near
    report = _bring("push" if target is far else "pull", source, target, near.storage, how)
    return report if report.files or relation != SAME else replace(report, action="none")


def relation_of(folder: Place, address: Place, there: Manifest | None = None) -> str:
    """What `compare` says about two places. `there` is the manifest at the address, if it is known."""
    far = look_at(address) if there is None else Side(storage_at(address), there, None)
    return compare(look_at(folder), far)


def _sides(near: Place, far: Place) -> tuple[Side, Side]:
    for place in (storage_at(near), storage_at(far)):
        if not place.is_remote and Path(str(place.path)).exists() and not place.exists():
            raise CacheError(f"{place.path}: is a file, not the folder of a cache; name a folder, or a new one")
    if storage_at(near).is_remote:  # what is remembered of both sides, and what a pull removes, is in a folder
        raise CacheError(
            f"{storage_at(near).path}: is an address, where the folder of a cache is expected; pull it to a folder, "
            "and push that folder to the other place"
        )
    sides = look_at(near), look_at(far)
    first, second = (each.storage.path for each in sides)
    if first == second or (all(each.storage.exists() for each in sides) and is_same_place(first, second)):
        raise CacheError(f"{first}: is the same place as {second}; name another one")
    if is_inside(first, second) or is_inside(second, first):
        raise CacheError(f"{first} and {second}: one is inside the other; name a place outside it")
    return sides


def _both_changed(near: Side, far: Side) -> CacheError:
    return CacheError(
        f"both sides have changed since they were last the same, if they ever were: {near}; {far}. Keep one of them: "
        f'run "streamcache sync" on both with --keep local, or with --keep remote'
    )


def _bring(action: str, source: Side, target: Side, near: Storage, how: Travel) -> TravelReport:
    far = target.storage if near is source.storage else source.storage
    with leased_manifest(source.storage) as manifest:
        if manifest is None or manifest.generation != source.generation:
            raise CacheBusy(f"{source.storage.path}: was published again a moment ago; run the same command again")
        missing = _missing(target.storage, cargo_of(manifest), how)
        report = _report(action, source, target, manifest, missing, how)
        if how.dry_run:
            return replace(report, pruned=prune(far, how.grace, apply=False) if how.prune else Pruned())
        if missing or target.generation != manifest.generation:
            meter = _travel(source.storage, target, manifest, missing, how, keeps_older=target.storage is far)
            report = replace(report, bytes=meter.carried, resumed=meter.done - meter.carried)
    remember_common(near, far, manifest.generation)
    return replace(report, pruned=prune(far, how.grace)) if how.prune else report


def _missing(storage: Storage, cargoes: Sequence[Cargo], how: Travel | None = None) -> list[Cargo]:
    """What the other side lacks, by name and size; with `verify`, also what has other bytes than it should."""
    sizes = {f"{SHARDS}/{name}": size for name, size in storage.sizes(SHARDS).items()} | storage.sizes()
    missing = [each for each in cargoes if sizes.get(each.name) != each.bytes]
    if how is not None and how.verify:
        missing += find_damaged(storage, [each for each in cargoes if each not in missing], how.progress)
    return missing


def _travel(
    source: Storage, target: Side, manifest: Manifest, missing: list[Cargo], how: Travel, keeps_older: bool
) -> Meter:
    storage = target.storage
    if target.manifest is None and storage.stat(INCOMING) is None:
        # What an interrupted push or pull has left looks like a cache whose manifest is lost, which this restores.
        refuse_foreign_files(storage)
    if (
        not storage.is_remote and (holder := current_publisher(storage)) is not None
    ):  # it would be found after hours of carrying
        raise CacheBusy(f"{storage.path}: {holder} is writing to it; wait until it has finished")
    landing = None
    try:
        landing = landing_in(storage)
        landing.expect(manifest)
        meter = carry(source, landing, missing, how.progress)
        _publish(landing, target, manifest, missing, keeps_older)
        _put_back(source, landing, storage, manifest)
        landing.discard()
    except OSError as error:
        raise CacheError(
            f"{storage.path}: cannot be written to: {error.strerror or error}; what has arrived is kept: run the same "
            "command again to continue"
        ) from error
    finally:
        if landing is not None:
            landing.close()
    return meter


def _publish(landing: Landing, target: Side, manifest: Manifest, missing: list[Cargo], keeps_older: bool) -> None:
    """The one step in which readers see the new generation, unless another process has published since."""
    storage = target.storage
    lock = None if storage.is_remote else PublishLock(storage)
    try:
        if look_at(storage).stamp != target.stamp:
            raise _overtaken(target)
        landing.settle(missing)
        lost = _missing(storage, cargo_of(manifest))
        if lost:
            raise CacheBusy(f"{storage.path}: {lost[0].name} was removed meanwhile; run the same command again")
        if target.generation == manifest.generation:
            return
        if target.manifest is not None and keeps_older:
            note_superseded(storage, target.manifest, manifest)
        if not storage.replace_if(MANIFEST, manifest.to_json(), target.stamp):
            raise _overtaken(target)
        if not keeps_older:
            protected = folder_contents(storage, manifest, publishing=False).protected
            remove_superseded(storage, manifest, keep=protected)
    finally:
        if lock is not None:
            lock.release()


def _put_back(source: Storage, landing: Landing, storage: Storage, manifest: Manifest) -> None:
    """Another process may have pruned a file that this generation lists again, before it was published."""
    lost = _missing(storage, cargo_of(manifest))
    if lost:
        carry(source, landing, lost, None)
        landing.settle(lost)


def _overtaken(target: Side) -> CacheError:
    found = look_at(target.storage)
    return CacheError(
        f"another process was first: {found}, where {(target.generation and target.generation[:12]) or 'nothing'} was "
        'expected. Nothing was published; run "streamcache sync" to see which side is newer'
    )


def _report(
    action: str, source: Side, target: Side, manifest: Manifest, missing: Sequence[Cargo], how: Travel
) -> TravelReport:
    return TravelReport(
        action=action,
        source=str(source.storage.path),
        destination=str(target.storage.path),
        generation=manifest.generation,
        replaced=target.generation,
        samples=manifest.counts.get("samples", 0),
        files=len(missing),
        bytes=sum(each.bytes for each in missing),
        total_bytes=sum(each.bytes for each in cargo_of(manifest)),
        dry_run=how.dry_run,
    )
