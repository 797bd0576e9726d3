"""Publishing: the publish lock, the atomic step to a new generation, and the removal of superseded files.

One writer at a time holds the lock; its process is recorded next to it for the error message that a second one gets.
"""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ...errors import CacheBusy, CacheError
from ..format import (
    BUILD,
    PADDING,
    SHARD_NAME,
    SHARDS,
    Lock,
    Manifest,
    MarkerHeld,
    Place,
    Storage,
    has_build,
    index_generation,
    index_name,
    is_published,
    is_trimmed,
    read_manifest,
    storage_at,
    write_manifest,
)
from ..index import IndexArrays, continued, derive, write_index
from ..read import LEASES, holders, refuse_lost, were_possible

PUBLISH_LOCK = ".lock"
PUBLISH_HOLDER = ".lock.holder"
GRACE_SECONDS = 24 * 3600  # for readers that cannot leave leases
_AHEAD_SECONDS = 60  # clocks of file servers differ by less
_MAX_HOLDER = 1 << 12
_WAIT_SECONDS = 0.2  # another process may hold the lock for a moment, to see whether it is held
# What operating systems put into folders and drives, in lower case.
_SYSTEM_FILES = {"thumbs.db", "desktop.ini", "lost+found", "$recycle.bin", "system volume information"}


class PublishLock:
    """Held from creation until `release`. The system frees it when the process ends, however it ends."""

    def __init__(self, place: Place) -> None:
        self._storage = storage = storage_at(place)
        self._lock: Lock | None = None
        # Everything written or removed from now on is in these. Behind a link it would belong to another folder.
        for name in (PUBLISH_LOCK, PUBLISH_HOLDER, SHARDS, LEASES, BUILD):
            storage.refuse_link(name)
        try:
            storage.make_folder()
            self._lock = storage.lock(PUBLISH_LOCK, _WAIT_SECONDS)
            with storage.create(PUBLISH_HOLDER, durable=False) as file:
                file.write(json.dumps(_this_process()).encode())
        except MarkerHeld as error:  # this drive has no file locks
            holder = _describe_holder(storage)
            message = f"{storage.path}: {holder} is writing to it; wait until it has finished, or if none is, remove"
            raise CacheBusy(f"{message} {error}") from None
        except TimeoutError:
            holder = _describe_holder(storage)
            message = f"{storage.path}: {holder} is writing to it; wait until it has finished"
            raise CacheBusy(message) from None
        except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
            self.release()
            if storage.is_remote:
                raise
            raise CacheError(f"{storage.path}: cannot be written to: {error}") from error

    def move(self, target: Path) -> None:
        """Rename the folder of the cache while no other process can write to it. The lock is held on."""
        assert self._lock is not None
        self._storage = self._storage.relocate(target, self._lock)

    def release(self) -> None:
        if self._lock is not None:
            self._storage.remove(PUBLISH_HOLDER)
            self._lock.release()
            self._lock = None


def refuse_foreign_folder(storage: Storage) -> None:
    """Refuse to start a cache in a folder that contains other things: it would be mixed with them, and cleaned."""
    refuse_lost(storage)
    refuse_foreign_files(storage)


def refuse_foreign_files(storage: Storage) -> None:
    """As `refuse_foreign_folder`, but the files of a cache whose manifest is lost may be there: they are its own."""
    if is_published(storage) or has_build(storage):
        return
    found = [name for name in storage.list() if not _is_own(name) and not _is_ignored(storage, name)]
    if found:
        named = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
        raise CacheError(
            f"{storage.path}: is not a cache and contains {named}; choose an empty folder, or one that does not exist"
        )


def _is_own(name: str) -> bool:
    return name == SHARDS or index_generation(name) is not None


def _is_ignored(storage: Storage, name: str) -> bool:
    """Whether this is hidden, the system's, or a folder of nothing but caches, as for `project` and `project/a`."""
    if name.startswith(".") or name.lower() in _SYSTEM_FILES:
        return True
    status = storage.stat(name)
    if status is None or status.kind != "folder":
        return False
    folder = storage_at(storage.path / name)
    return is_published(folder) or has_build(folder) or all(_is_ignored(folder, each) for each in folder.list())


def current_publisher(place: Place) -> str | None:
    """The process that is writing to this cache now, if any."""
    storage = storage_at(place)
    lock = storage.stat(PUBLISH_LOCK)
    if lock is None or lock.kind == "link":
        return None
    try:
        return _describe_holder(storage) if storage.is_locked(PUBLISH_LOCK) else None
    except OSError:  # the lock cannot be probed here; the recorded holder is all there is
        return _describe_holder(storage) if storage.stat(PUBLISH_HOLDER) is not None else None


def named_publisher(place: Place) -> str | None:
    """As `current_publisher`, but asks the lock only if a writer left its name: on Windows, asking touches its file."""
    storage = storage_at(place)
    return current_publisher(storage) if storage.stat(PUBLISH_HOLDER) is not None else None


def publish(place: Place, arrays: IndexArrays, draft: Manifest, kept: Sequence[IndexArrays] = ()) -> Manifest:
    """Write the index, then the manifest (`draft` with the index's size and hash). Durable on return.

    If the draft lists segments, `kept` are their arrays, and the index has only what comes after them. No older file is
    removed. Call `remove_superseded` once this process has closed the last generation.
    """
    storage, temporary = storage_at(place), f".index.{os.getpid()}.tmp"
    try:
        continues = [segment.generation for segment in draft.segments]
        size, digest = write_index(storage, temporary, arrays, continues, derive(arrays, len(draft.fields), kept))
        manifest = replace(with_features(draft, [*kept, arrays]), index_bytes=size, index_hash=digest)
        current = read_manifest(storage)
        if current is not None and current.generation == manifest.generation:
            return current
        storage.move(temporary, manifest.index_name)
        storage.sync()
        write_manifest(storage, manifest)
    except OSError as error:
        raise CacheError(
            f"{storage.path}: cannot be published: {error.strerror or error}; the last generation is unchanged"
        ) from error
    finally:
        storage.remove(temporary)
    return manifest


def with_features(draft: Manifest, files: Sequence[IndexArrays]) -> Manifest:
    """The draft with what a reader of these files of the index must know."""
    trimmed = {PADDING} if any(is_trimmed(arrays.layouts) for arrays in files) else set()
    return replace(draft, requires=tuple(sorted({*draft.requires} - {PADDING} | trimmed)))


def remove_superseded(place: Place, manifest: Manifest, keep: Container[str] = ()) -> None:
    """Remove the files that no generation in use needs; files held open on Windows are removed by a later call.

    `keep` names shards to keep because an unfinished build refers to them.
    """
    storage = storage_at(place)
    try:
        names = list(_superseded(storage, manifest))
    except CacheError:  # the readers are unknown, so nothing is removed
        return
    for name in names:
        if name.removeprefix(f"{SHARDS}/") not in keep:
            storage.remove(name)


def _superseded(storage: Storage, manifest: Manifest) -> Iterator[str]:
    """Indexes and shards that the current generation does not list and no lease protects."""
    indexes = [name for name in storage.list() if index_generation(name)]
    held = {index_name(holder.generation) for holder in holders(storage)} | set(in_grace(storage, indexes))
    needed = {*manifest.index_names, *needed_indexes(storage, held & set(indexes))}
    yield from (name for name in indexes if name not in needed)
    # Which shards an older generation reads is known only to its readers, so all are kept while there are any. Those of
    # one that the index continues are listed.
    if not held & set(indexes) - set(manifest.index_names):
        listed = {shard.file for shard in manifest.shards}
        yield from (f"{SHARDS}/{file}" for file in list_shards(storage) if file not in listed)


def needed_indexes(storage: Storage, names: Iterable[str]) -> set[str]:
    """These index files and those that they continue."""
    return {found for name in names for found in (name, *map(index_name, continued(storage, name)))}


def in_grace(storage: Storage, indexes: Iterable[str]) -> list[str]:
    """Which of the current and the previous generation were current within the last day; none if readers leave leases.

    Earlier ones are not kept: if no reader ever came, which looks the same, every publication would leave one behind.
    `indexes` has all index files, also the current one: a generation was current until the next one was written.
    """
    if were_possible(storage):
        return []
    now = time.time()
    dates = {name: status.modified for name in indexes if (status := storage.stat(name)) is not None}
    ahead = [name for name, modified in dates.items() if modified > now + _AHEAD_SECONDS]
    for name in ahead:  # a clock is wrong somewhere: it counts as written now, and gets old from now on
        with contextlib.suppress(OSError):
            storage.touch(name, now)
    found = sorted(((modified, name) for name, modified in dates.items() if name not in ahead), reverse=True)
    ends = [modified for modified, _ in [*found[:1], *found]]
    return ahead + [name for end, (_, name) in zip(ends, found[:2], strict=False) if now - end < GRACE_SECONDS]


def list_shards(storage: Storage) -> list[str]:
    """The files in the folder of shards that have a shard's name."""
    return [file for file in storage.list(SHARDS) if SHARD_NAME.fullmatch(file)]


def _this_process() -> dict[str, str | int]:
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"pid": os.getpid(), "host": socket.gethostname(), "program": Path(sys.argv[0]).name, "since": started}


def _describe_holder(storage: Storage) -> str:
    try:
        file = storage.open(PUBLISH_HOLDER)
        facts = json.loads(file.read(0, min(file.size, _MAX_HOLDER)))
        return f"{facts['program']} (process {facts['pid']} on {facts['host']}, since {facts['since']})"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"
