"""The right to publish: one writer at a time, which leaves its name for whoever comes second."""

import json
import os
import socket
import sys
import time
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import CacheBusy, CacheError
from ..format import BUILD, SHARDS, create_file, is_link, is_locked, is_regular, refuse_link, remove_file
from ..read import LEASES

PUBLISH_LOCK = ".lock"
PUBLISH_HOLDER = ".lock.holder"
_PATIENCE = 0.2  # seconds: somebody may just be looking whether the lock is held


class PublisherLock:
    """Held from creation until `release`. The system frees it when its process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        # Whatever is written or removed from now on stands in these: behind a link it would be somebody else's.
        for name in (PUBLISH_LOCK, PUBLISH_HOLDER, SHARDS, LEASES, BUILD):
            refuse_link(folder / name)
        self._holder = folder / PUBLISH_HOLDER
        self._lock = FileLock(str(folder / PUBLISH_LOCK), thread_local=False)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=_PATIENCE, poll_interval=0.02)
            with create_file(self._holder) as file:
                file.write(json.dumps(_myself()).encode())
        except Timeout:
            raise CacheBusy(f"{folder}: {_describe(self._holder)} is writing to it; wait until it is done") from None
        except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
            self.release()
            raise CacheError(f"{folder}: cannot be written to: {error}") from error

    def release(self) -> None:
        if self._lock.is_locked:
            remove_file(self._holder)
            self._lock.release()


def current_publisher(folder: Path) -> str | None:
    """Who is writing to this dataset now, if anybody is."""
    if not (folder / PUBLISH_LOCK).exists() or is_link(folder / PUBLISH_LOCK):
        return None
    try:
        return _describe(folder / PUBLISH_HOLDER) if is_locked(folder / PUBLISH_LOCK) else None
    except OSError:  # nobody can tell: the holder's name is all there is to see
        return _describe(folder / PUBLISH_HOLDER) if (folder / PUBLISH_HOLDER).exists() else None


def _myself() -> dict[str, str | int]:
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"pid": os.getpid(), "host": socket.gethostname(), "program": Path(sys.argv[0]).name, "since": started}


def _describe(holder: Path) -> str:
    if not is_regular(holder):
        return "another process"
    try:
        facts = json.loads(holder.read_text())
        return f"{facts['program']} (process {facts['pid']} on {facts['host']}, since {facts['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
