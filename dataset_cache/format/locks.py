"""File locks. The system frees them when their process ends; on drives without file locks, marker files replace them.

A marker names its process, so one that a killed process of this host left is ignored. One of another host is not.
"""

import contextlib
import errno
import os
import secrets
import stat
import time
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from ...errors import CacheError
from ..processes import is_running, own_start, this_host
from .files import OWN_FILE, locks_open_files

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_POLL_SECONDS = 0.02
# NFS without a lock service reports ENOLCK, some network drives EINVAL.
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}
_MARKER = ".held"  # is added to the name of the lock
_MAX_MARKER = 1 << 10
_NAMELESS_SECONDS = 60  # after this long, a marker without a process was left by a crash


class MarkerHeld(TimeoutError):
    """The lock is a marker file, named by the message, which may have been left by a killed process."""


class Lock(Protocol):
    """Held until `release`, or until the process ends, however it ends."""

    def release(self) -> None: ...


class HeldLock:
    """Held until `release`, or until the process ends. A marker stays behind if the process is killed."""

    def __init__(self, fd: int, marker: Path | None = None) -> None:
        self._fd, self._marker, self._pid = fd, marker, os.getpid()

    def release(self) -> None:
        if self._marker is not None:
            with contextlib.suppress(OSError):
                self._marker.unlink()
        elif self._fd >= 0 and fcntl is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # a forked child may have the file open too
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._marker = -1, None

    def follow(self, folder: Path) -> None:
        """The lock's file was moved to this folder, with everything next to it."""
        if self._marker is not None:
            self._marker = folder / self._marker.name

    def __del__(self) -> None:
        if self._marker is not None and self._pid == os.getpid():  # a forked child keeps that of its parent
            with contextlib.suppress(OSError):
                self._marker.unlink()
        if self._fd >= 0:
            os.close(self._fd)


def take_lock(path: Path, patience: float = 0.0) -> HeldLock | FileLock:
    """Take the lock, waiting for `patience` seconds. Raises TimeoutError if another process holds it."""
    _refuse_others(path)
    if fcntl is None:
        lock = FileLock(str(path), thread_local=False)
        lock.acquire(timeout=patience, poll_interval=_POLL_SECONDS)
        return lock
    deadline = time.monotonic() + patience
    while True:
        found = _try_lock(path)
        if isinstance(found, HeldLock):
            return found
        if time.monotonic() >= deadline:
            raise MarkerHeld(str(found)) if found is not None else TimeoutError(str(path))
        time.sleep(_POLL_SECONDS)


def move_locked_folder(folder: Path, target: Path, lock: Lock) -> None:
    """Move the folder that a held lock is in. No other process can take the lock meanwhile."""
    if locks_open_files():
        # Windows moves no folder with an open file; a process that comes now finds the folder gone.
        lock.release()
    os.rename(folder, target)
    if isinstance(lock, HeldLock):
        lock.follow(target)


def is_locked(path: Path) -> bool:
    """Whether a process holds this lock. Raises OSError if that cannot be found out.

    Creates and changes no file, whatever happens to the folder.
    """
    if fcntl is None:
        return _cannot_lock(path)
    # Taking the lock would create the file, and folders for it, if they were removed a moment ago.
    fd = os.open(path, os.O_RDONLY | OWN_FILE)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return _is_held(_marker_of(path))
    finally:
        os.close(fd)


def _cannot_lock(path: Path) -> bool:
    if not stat.S_ISREG(path.lstat().st_mode):  # raises if it is missing
        return False
    lock = FileLock(str(path), thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def _refuse_others(path: Path) -> None:
    """A pipe or device in a folder from elsewhere would block the process or do something else."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise CacheError(f"{path}: is not a file; a cache contains only files of its own; remove it")


def _try_lock(path: Path) -> HeldLock | Path | None:
    """The lock, or None if another process holds it, or the marker by which one does."""
    assert fcntl is not None
    fd = os.open(path, os.O_RDWR | os.O_CREAT | OWN_FILE, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # If the file was moved or removed meanwhile, the next process would lock another one.
        if os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False)):
            held, fd = HeldLock(fd), -1
            return held
        return None
    except (BlockingIOError, PermissionError, FileNotFoundError):
        return None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return _try_marker(_marker_of(path))
    finally:
        if fd >= 0:
            os.close(fd)


def _try_marker(marker: Path) -> HeldLock | Path:
    try:
        fd = os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL | OWN_FILE, 0o666)
    except FileExistsError:
        if not _is_held(marker):
            _remove_stale(marker)
        return marker
    held = HeldLock(fd, marker)
    try:
        os.write(fd, f"{this_host()} {os.getpid()} {own_start()}".encode())
    except BaseException:  # the disk is full: an empty marker would block the lock
        held.release()
        raise
    return held


def _is_held(marker: Path) -> bool:
    try:
        text, modified = _read(marker), marker.lstat().st_mtime
    except FileNotFoundError:
        return False
    except OSError:
        return True
    words = text.split(" ")
    if len(words) == 3 and words[1].isascii() and words[1].isdigit():
        return words[0] != this_host() or is_running(int(words[1]), words[2]) is not False
    now = time.time()
    if modified > now + _NAMELESS_SECONDS:  # a clock is wrong somewhere: it counts as written now, and gets old
        with contextlib.suppress(OSError):
            os.utime(marker, (now, now))
    return now - modified < _NAMELESS_SECONDS


def _remove_stale(marker: Path) -> None:
    """Move the marker away first: another process may have replaced it by its own since it was examined."""
    aside = marker.with_name(f"{marker.name}.{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        os.rename(marker, aside)
        if _is_held(aside):
            os.rename(aside, marker)
        else:
            aside.unlink()


def _read(marker: Path) -> str:
    fd = os.open(marker, os.O_RDONLY | OWN_FILE)
    try:
        return os.read(fd, _MAX_MARKER).decode(errors="replace") if stat.S_ISREG(os.fstat(fd).st_mode) else ""
    finally:
        os.close(fd)


def _marker_of(path: Path) -> Path:
    return path.with_name(path.name + _MARKER)
