"""Leases: small files that show which process reads which generation, so that nothing in use is removed.

The file of a lease is touched regularly while its process runs. If leases cannot be written (a read-only folder),
readers work without them.
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

from ..errors import CacheError
from ..format import Place, Storage, storage_at

LEASES = ".leases"
HEARTBEAT_SECONDS = 30
STALE_SECONDS = 300


@dataclass(frozen=True)
class Holder:
    """A process that reads a generation."""

    generation: str
    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Lease:
    """Held from creation until `release`, or until it is garbage-collected."""

    def __init__(self, place: Place, generation: str) -> None:
        self._storage = storage_at(place)
        self._generation = generation
        self._take()
        with _guard:
            _live.add(self)
        _Heartbeat.start()

    def _take(self) -> None:
        host = this_host()
        self._name = f"{LEASES}/{self._generation}.{host}.{os.getpid()}.{secrets.token_hex(4)}"
        self._finalizer = None
        if _is_linked(self._storage):
            return  # what is behind it does not belong to this dataset
        # A shared folder may be read-only: reading works without a lease, and cleaning keeps recent generations there.
        with contextlib.suppress(OSError):
            self._storage.make_folder(LEASES)
            self._storage.touch(self._name)
            self._finalizer = weakref.finalize(self, _remove, self._storage, self._name, os.getpid())

    def beat(self) -> None:
        """Say that this process lives; a file that was taken for stale, as after a long sleep, is made again."""
        if self._finalizer is not None and self._finalizer.alive:
            with contextlib.suppress(OSError):  # the folder was removed; the next read reports it
                self._storage.touch(self._name)

    def release(self) -> None:
        if self._finalizer is not None:
            self._finalizer()


def holders(place: Place) -> list[Holder]:
    """The processes that read a generation of this dataset now. Leases of dead processes are removed on the way."""
    storage, found = storage_at(place), []
    for name in storage.list(LEASES):
        parts = name.split(".")
        if len(parts) != 4 or not parts[2].isdigit():
            continue
        holder = Holder(parts[0], parts[1], int(parts[2]))
        if _is_stale(storage, f"{LEASES}/{name}", holder):
            storage.remove(f"{LEASES}/{name}")
        else:
            found.append(holder)
    return found


def were_possible(place: Place) -> bool:
    """Whether readers could leave leases here; if not, recent generations may be in use unseen."""
    status = storage_at(place).stat(LEASES)
    return status is not None and status.kind == "folder"


def _is_linked(storage: Storage) -> bool:
    status = storage.stat(LEASES)
    return status is not None and status.kind == "link"


def _is_stale(storage: Storage, name: str, holder: Holder) -> bool:
    try:
        status = storage.stat(name)
    except CacheError:
        return True
    if status is None or time.time() - status.modified > STALE_SECONDS:
        return True
    return holder.host == this_host() and not _may_live(holder.pid)


@lru_cache(1)
def this_host() -> str:
    """This host, with its PID namespace: containers with one host name may each have their own process numbers."""
    try:
        space = "".join(c for c in os.readlink("/proc/self/ns/pid") if c.isdigit())
    except OSError:
        space = "0"
    name = "".join(c if c.isalnum() or c == "-" else "-" for c in socket.gethostname())
    return f"{name}-{space}"


def _may_live(pid: int) -> bool:
    if os.name == "nt":
        return True  # os.kill would end the process on Windows; the heartbeat decides
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _remove(storage: Storage, name: str, pid: int) -> None:
    # A forked child inherits the finalizer of its parent's lease, which it must not remove.
    if pid == os.getpid():
        storage.remove(name)


_live: "weakref.WeakSet[Lease]" = weakref.WeakSet()
_guard = threading.Lock()  # guards the set: it must not change while the heartbeat iterates over it


def _beat_all() -> None:
    # A separate function: a variable of the endless loop would keep the last lease alive forever.
    with _guard:
        leases = list(_live)
    for lease in leases:
        lease.beat()


class _Heartbeat:
    """One thread per process that refreshes all its leases."""

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
    _guard = threading.Lock()  # a thread of the parent may have held it
    _Heartbeat._thread = None
    for lease in list(_live):
        lease._take()
    if len(_live):
        _Heartbeat.start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
