"""Files of older generations on the far side. They stay, unless pruning is asked for: readers there leave no leases.

`.travel/superseded.json` has the files of the last generation, which are never removed, and since when each other file
was no longer listed: the time of grace begins there, not when it was uploaded. Two pushes may write it at once; what is
forgotten stays longer.
"""

import contextlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import CacheBusy, CacheError
from ..format import SHARDS, Manifest, Storage, index_generation, read_manifest
from ..read import holders
from ..upkeep import TRAVEL
from ..write import GRACE_SECONDS, PublishLock, list_shards
from .cargo import cargo_of

_NAME = f"{TRAVEL}/superseded.json"
_MAX_BYTES = 64 << 20
_FILE = re.compile(r"(shards/[a-z]-[0-9]{5,9}|index)-[0-9a-f]{32}\.safetensors")


@dataclass(frozen=True)
class Pruned:
    files: int = 0
    bytes: int = 0
    waiting: int = 0  # files that are still in their time of grace


@dataclass(frozen=True)
class Superseded:
    """`last`: the files of the generation before the current one. `since`: when others were first found unlisted."""

    last: frozenset[str] = frozenset()
    since: Mapping[str, float] = field(default_factory=dict)


def note_superseded(storage: Storage, former: Manifest, now: Manifest) -> None:
    """Before a generation takes the place of another one: its files are those of the last generation from now on."""
    known, files = _read(storage), {each.name for each in cargo_of(former)}
    current = {each.name for each in cargo_of(now)}
    since = dict.fromkeys(known.last - files - current, time.time()) | {
        name: began for name, began in known.since.items() if name not in files | current
    }
    with contextlib.suppress(CacheError, OSError):  # without it, the time of grace begins later
        _write(storage, Superseded(frozenset(files), since))


def prune(storage: Storage, grace: float = GRACE_SECONDS, apply: bool = True) -> Pruned:
    """Remove what neither the current nor the last generation lists, and was not listed for `grace` seconds."""
    manifest = read_manifest(storage)
    if manifest is None or any(each.generation != manifest.generation for each in holders(storage)):
        return Pruned()  # which shards an older generation reads is known only to its readers
    known, now = _read(storage), time.time()
    kept = {each.name for each in cargo_of(manifest)} | known.last
    found = [f"{SHARDS}/{file}" for file in list_shards(storage)]
    found += [name for name in storage.list() if index_generation(name)]
    sizes = {f"{SHARDS}/{name}": size for name, size in storage.sizes(SHARDS).items()} | storage.sizes()
    # A time ahead of the clock counts as now: a clock was wrong somewhere.
    since = {name: min(known.since.get(name, now), now) for name in found if name not in kept}
    due = [name for name, began in since.items() if now - began >= grace]
    if not apply:
        return Pruned(len(due), sum(sizes.get(name, 0) for name in due), len(since) - len(due))
    _write(storage, Superseded(known.last, {name: began for name, began in since.items() if name not in due}))
    gone = _remove(storage, manifest, due)
    return Pruned(len(gone), sum(sizes.get(name, 0) for name in gone), len(since) - len(gone))


def _remove(storage: Storage, manifest: Manifest, names: Sequence[str]) -> list[str]:
    """Remove these files, unless another process publishes: its generation may list some of them again.

    In a folder, publishers hold its lock. At an address there is none: a publisher looks for its files once more after
    it has published, and what it cannot have seen is said here.
    """
    try:
        lock = None if storage.is_remote else PublishLock(storage)
    except CacheBusy:
        return []
    try:
        latest = read_manifest(storage)
        if latest is None or latest.generation != manifest.generation:
            return []
        gone = [name for name in names if storage.remove(name)]
        latest = read_manifest(storage)
    finally:
        if lock is not None:
            lock.release()
    lost = {each.name for each in cargo_of(latest)}.intersection(gone) if latest is not None else ()
    if lost:
        raise CacheBusy(
            f"{storage.path}: another process published it again while older files were removed, and {len(lost)} of "
            'them are needed now; run "streamcache sync" where it was published from'
        )
    return gone


def _read(storage: Storage) -> Superseded:
    try:
        if storage.stat(_NAME) is None:
            return Superseded()
        file = storage.open(_NAME)
        body = json.loads(bytes(file.read(0, min(file.size, _MAX_BYTES))))
        last, since = body["last"], body["since"]
        return Superseded(frozenset(map(_name, last)), {_name(name): float(began) for name, began in since.items()})
    except (CacheError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Superseded()  # lost or damaged: the time of grace begins again


def _write(storage: Storage, state: Superseded) -> None:
    storage.refuse_link(TRAVEL)
    storage.make_folder(TRAVEL)
    storage.replace(_NAME, json.dumps({"last": sorted(state.last), "since": dict(state.since)}).encode())


def _name(text: Any) -> str:
    if not isinstance(text, str) or not _FILE.fullmatch(text):
        raise ValueError(text)
    return text
