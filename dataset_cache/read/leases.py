"""Leases: small files that show which process reads which generation, so that nothing in use is removed.

The file of a lease is touched regularly while its process runs. On the host of that process the process itself counts,
not the clock: clocks jump, and processes are stopped and continued. If leases cannot be written (a read-only folder),
readers work without them.
"""

import contextlib
import os
import re
import secrets
import threading
import time
import weakref
from dataclasses import dataclass

from ...errors import CacheError
from ..format import Place, Storage, storage_at
from ..processes import is_running, own_start, this_host

LEASES = ".leases"
HEARTBEAT_SECONDS = 30
STALE_SECONDS = 300
# Generation, host, process, then a random number and, in newer versions, when the process started.
_NAME = re.compile(r"([^.]+)\.([^.]+)\.([0-9]{1,10})\.([^.-]+)-?([0-9a-f]*)")


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
        pid = os.getpid()
        number = "-".join(filter(None, (secrets.token_hex(4), own_start())))
        self._name = f"{LEASES}/{self._generation}.{this_host()}.{pid}.{number}"
        self._finalizer = None
        if self._storage.is_remote or _is_linked(self._storage):
            return  # an address is only read; what is behind a link does not belong to this dataset
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
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        holder = Holder(match[1], match[2], int(match[3]))
        if not _is_stale(storage, f"{LEASES}/{name}", holder, match[5]):
            found.append(holder)
        elif _kind(storage, f"{LEASES}/{name}") == "file":
            storage.remove(f"{LEASES}/{name}")
    return found


def were_possible(place: Place) -> bool:
    """Whether readers could leave leases here; if not, recent generations may be in use unseen."""
    status = storage_at(place).stat(LEASES)
    return status is not None and status.kind == "folder"


def _is_linked(storage: Storage) -> bool:
    return _kind(storage, LEASES) == "link"


def _kind(storage: Storage, name: str) -> str | None:
    status = storage.stat(name)
    return None if status is None else status.kind


def _is_stale(storage: Storage, name: str, holder: Holder, start: str) -> bool:
    running = is_running(holder.pid, start) if holder.host == this_host() else None
    if running is not None:
        return not running
    try:
        status = storage.stat(name)
    except CacheError:  # unknown: assume that it is held
        return False
    if status is None or status.kind != "file":
        return True
    now = time.time()
    if status.modified > now + HEARTBEAT_SECONDS:
        # A clock is wrong somewhere. The lease counts as touched now, and gets old unless it is touched again.
        with contextlib.suppress(OSError):
            storage.touch(name, now)
    return now - status.modified > STALE_SECONDS


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
