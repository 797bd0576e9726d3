"""Leases: small files that say who reads which generation, so that nothing in use is removed.

A lease is a promise as good as its heartbeat: its file is touched while its process lives. Where leases cannot be
written (a read-only folder), readers work without.
"""

import contextlib
import os
import secrets
import socket
import threading
import time
import weakref
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..format import is_link

LEASES = ".leases"
HEARTBEAT_SECONDS = 30
STALE_SECONDS = 300


@dataclass(frozen=True)
class Holder:
    """Somebody who reads a generation."""

    generation: str
    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Lease:
    """Held from creation until `release`, or until it is garbage-collected."""

    def __init__(self, folder: Path, generation: str) -> None:
        self._folder = folder / LEASES
        self._generation = generation
        self._take()
        with _guard:
            _live.add(self)
        _Heart.start()

    def _take(self) -> None:
        host = this_host()
        self._path = self._folder / f"{self._generation}.{host}.{os.getpid()}.{secrets.token_hex(4)}"
        self._finalizer = None
        if is_link(self._folder):
            return  # what stands behind it is not this dataset's to write to
        # In a shared folder that cannot be written to, reading goes on, and cleaning keeps recent generations there.
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            self._path.touch()
            self._finalizer = weakref.finalize(self, _remove, self._path, os.getpid())

    def beat(self) -> None:
        """Say that this process lives; a file that was taken for stale, as after a long sleep, is made again."""
        if self._finalizer is not None and self._finalizer.alive:
            with contextlib.suppress(OSError):  # the folder went away; the reader says so when it reads
                self._path.touch()

    def release(self) -> None:
        if self._finalizer is not None:
            self._finalizer()


def holders(folder: Path) -> list[Holder]:
    """Everybody who reads a generation of this dataset now. Leases of the dead are removed on the way."""
    found = []
    for path in _lease_files(folder):
        parts = path.name.split(".")
        if len(parts) != 4 or not parts[2].isdigit():
            continue
        holder = Holder(parts[0], parts[1], int(parts[2]))
        if _is_stale(path, holder):
            _remove(path, os.getpid())
        else:
            found.append(holder)
    return found


def were_possible(folder: Path) -> bool:
    """Whether readers could leave leases here; if not, recent generations may be in use unseen."""
    return (folder / LEASES).is_dir() and not is_link(folder / LEASES)


def _lease_files(folder: Path) -> list[Path]:
    try:
        return sorted((folder / LEASES).iterdir()) if not is_link(folder / LEASES) else []
    except OSError:
        return []


def _is_stale(path: Path, holder: Holder) -> bool:
    try:
        age = time.time() - path.stat().st_mtime
    except OSError:
        return True
    return age > STALE_SECONDS or (holder.host == this_host() and not _may_live(holder.pid))


@lru_cache(1)
def this_host() -> str:
    """Where process numbers mean what they mean here: containers of one host name may each count their own."""
    try:
        space = "".join(c for c in os.readlink("/proc/self/ns/pid") if c.isdigit())
    except OSError:
        space = "0"
    name = "".join(c if c.isalnum() or c == "-" else "-" for c in socket.gethostname())
    return f"{name}-{space}"


def _may_live(pid: int) -> bool:
    if os.name == "nt":
        return True  # os.kill would end the process there; the heartbeat decides
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _remove(path: Path, pid: int) -> None:
    # A forked child inherits the finalizer of its parent's lease, which is not its to remove.
    if pid == os.getpid():
        with contextlib.suppress(OSError):  # removed with its folder, or by another
            path.unlink(missing_ok=True)


_live: "weakref.WeakSet[Lease]" = weakref.WeakSet()
_guard = threading.Lock()  # of the set: it must not grow while the heart goes through it


def _beat_all() -> None:
    # A function of its own: a variable of the endless loop would keep the last lease alive for ever.
    with _guard:
        leases = list(_live)
    for lease in leases:
        lease.beat()


class _Heart:
    """One thread a process that touches all of its leases."""

    _thread: threading.Thread | None = None

    @classmethod
    def start(cls) -> None:
        if cls._thread is None or not cls._thread.is_alive():
            cls._thread = threading.Thread(target=cls._run, name="streamcache leases", daemon=True)
            cls._thread.start()

    @staticmethod
    def _run() -> None:
        while True:
            time.sleep(HEARTBEAT_SECONDS)
            _beat_all()


def _after_fork() -> None:
    global _guard
    _guard = threading.Lock()  # a thread that is gone may hold it
    _Heart._thread = None
    for lease in list(_live):
        lease._take()
    if len(_live):
        _Heart.start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
