"""Publishing: the publish lock, the atomic step to a new generation, and the removal of superseded files.

One writer at a time holds the lock; its process is recorded next to it for the error message that a second one gets.
"""

import json
import os
import re
import socket
import sys
import time
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path

from ..errors import CacheBusy, CacheError
from ..format import (
    BUILD,
    SHARD_NAME,
    SHARDS,
    IndexArrays,
    Lock,
    Manifest,
    Place,
    Storage,
    derive,
    read_manifest,
    storage_at,
    write_index,
    write_manifest,
)
from ..read import LEASES, holders

PUBLISH_LOCK = ".lock"
PUBLISH_HOLDER = ".lock.holder"
_WAIT_SECONDS = 0.2  # another process may hold the lock for a moment, to see whether it is held
_INDEX_NAME = re.compile(r"index-([0-9a-f]{32})\.safetensors")


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
        except TimeoutError:
            holder = _describe_holder(storage)
            raise CacheBusy(f"{storage.path}: {holder} is writing to it; wait until it has finished") from None
        except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
            self.release()
            raise CacheError(f"{storage.path}: cannot be written to: {error}") from error

    def release(self) -> None:
        if self._lock is not None:
            self._storage.remove(PUBLISH_HOLDER)
            self._lock.release()
            self._lock = None


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


def publish(place: Place, arrays: IndexArrays, draft: Manifest) -> Manifest:
    """Write the index, then the manifest (`draft` with the index's size and hash). Durable on return.

    No older file is removed. Call `remove_superseded` once this process has closed the last generation.
    """
    storage, temporary = storage_at(place), f".index.{os.getpid()}.tmp"
    try:
        size, digest = write_index(storage, temporary, derive(arrays, len(draft.fields)))
        manifest = replace(draft, index_bytes=size, index_hash=digest)
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
    leased = {holder.generation for holder in holders(storage)}
    for name in storage.list():
        if index_generation(name) not in (None, manifest.generation, *leased):
            yield name
    # Which shards an older generation reads is known only to its readers, so all are kept while there are any.
    if leased <= {manifest.generation}:
        listed = {shard.file for shard in manifest.shards}
        yield from (f"{SHARDS}/{file}" for file in list_shards(storage) if file not in listed)


def list_shards(storage: Storage) -> list[str]:
    """The files in the folder of shards that have a shard's name."""
    return [file for file in storage.list(SHARDS) if SHARD_NAME.fullmatch(file)]


def index_generation(name: str) -> str | None:
    """The generation of an index file, from its name."""
    match = _INDEX_NAME.fullmatch(name)
    return match[1] if match else None


def _this_process() -> dict[str, str | int]:
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"pid": os.getpid(), "host": socket.gethostname(), "program": Path(sys.argv[0]).name, "since": started}


def _describe_holder(storage: Storage) -> str:
    try:
        file = storage.open(PUBLISH_HOLDER)
        facts = json.loads(file.read(0, file.size))
        return f"{facts['program']} (process {facts['pid']} on {facts['host']}, since {facts['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
