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

from filelock import FileLock, Timeout

from ..errors import CacheBusy, CacheError
from ..format import (
    BUILD,
    SHARD_NAME,
    SHARDS,
    IndexArrays,
    Manifest,
    create_file,
    derive,
    is_link,
    is_locked,
    is_regular,
    read_manifest,
    refuse_link,
    remove_file,
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

    def __init__(self, folder: Path) -> None:
        # Everything written or removed from now on is in these. Behind a link it would belong to another folder.
        for name in (PUBLISH_LOCK, PUBLISH_HOLDER, SHARDS, LEASES, BUILD):
            refuse_link(folder / name)
        self._holder = folder / PUBLISH_HOLDER
        self._lock = FileLock(str(folder / PUBLISH_LOCK), thread_local=False)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=_WAIT_SECONDS, poll_interval=0.02)
            with create_file(self._holder) as file:
                file.write(json.dumps(_this_process()).encode())
        except Timeout:
            holder = _describe_holder(self._holder)
            raise CacheBusy(f"{folder}: {holder} is writing to it; wait until it has finished") from None
        except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
            self.release()
            raise CacheError(f"{folder}: cannot be written to: {error}") from error

    def release(self) -> None:
        if self._lock.is_locked:
            remove_file(self._holder)
            self._lock.release()


def current_publisher(folder: Path) -> str | None:
    """The process that is writing to this cache now, if any."""
    if not (folder / PUBLISH_LOCK).exists() or is_link(folder / PUBLISH_LOCK):
        return None
    try:
        return _describe_holder(folder / PUBLISH_HOLDER) if is_locked(folder / PUBLISH_LOCK) else None
    except OSError:  # the lock cannot be probed here; the recorded holder is all there is
        return _describe_holder(folder / PUBLISH_HOLDER) if (folder / PUBLISH_HOLDER).exists() else None


def publish(folder: Path, arrays: IndexArrays, draft: Manifest) -> Manifest:
    """Write the index, then the manifest (`draft` with the index's size and hash). Durable on return.

    No older file is removed. Call `remove_superseded` once this process has closed the last generation.
    """
    storage, temporary = storage_at(folder), f".index.{os.getpid()}.tmp"
    try:
        size, digest = write_index(storage, temporary, derive(arrays, len(draft.fields)))
        manifest = replace(draft, index_bytes=size, index_hash=digest)
        current = read_manifest(folder)
        if current is not None and current.generation == manifest.generation:
            return current
        storage.move(temporary, manifest.index_name)
        storage.sync()
        write_manifest(storage, manifest)
    except OSError as error:
        raise CacheError(
            f"{folder}: cannot be published: {error.strerror or error}; the last generation is unchanged"
        ) from error
    finally:
        storage.remove(temporary)
    return manifest


def remove_superseded(folder: Path, manifest: Manifest, keep: Container[str] = ()) -> None:
    """Remove the files that no generation in use needs; files held open on Windows are removed by a later call.

    `keep` names shards to keep because an unfinished build refers to them.
    """
    for path in superseded(folder, manifest):
        if path.name not in keep:
            remove_file(path)


def superseded(folder: Path, manifest: Manifest) -> Iterator[Path]:
    """Indexes and shards that the current generation does not list and no lease protects."""
    leased = {holder.generation for holder in holders(folder)}
    for path in folder.glob("index-*"):
        if index_generation(path) not in (None, manifest.generation, *leased):
            yield path
    # Which shards an older generation reads is known only to its readers, so all are kept while there are any.
    if leased <= {manifest.generation}:
        listed = {shard.file for shard in manifest.shards}
        yield from (path for path in shards_inside(folder) if path.name not in listed)


def shards_inside(folder: Path) -> list[Path]:
    """The files of a cache that have a shard's name. A linked folder is ignored: it may belong to another cache."""
    shards = folder / SHARDS
    inside = sorted(shards.iterdir()) if shards.is_dir() and not is_link(shards) else []
    return [path for path in inside if SHARD_NAME.fullmatch(path.name)]


def index_generation(path: Path) -> str | None:
    """The generation of an index file, from its name."""
    match = _INDEX_NAME.fullmatch(path.name)
    return match[1] if match else None


def _this_process() -> dict[str, str | int]:
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"pid": os.getpid(), "host": socket.gethostname(), "program": Path(sys.argv[0]).name, "since": started}


def _describe_holder(holder: Path) -> str:
    if not is_regular(holder):
        return "another process"
    try:
        facts = json.loads(holder.read_text())
        return f"{facts['program']} (process {facts['pid']} on {facts['host']}, since {facts['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
