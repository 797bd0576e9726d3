"""Access to bytes in files: positional reads into prepared memory, durable writes, and what a platform lacks.

Everything that reads tensor bytes goes through `read_into`, so that another kind of storage can stand in.
"""

import contextlib
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import CacheError

# Tests switch these off to run the paths of platforms that lack the calls (Windows has neither).
HAS_PREADV = hasattr(os, "preadv")
HAS_LINKS = hasattr(os, "link")
LOCKS_OPEN_FILES = os.name == "nt"  # a file that somebody has open can be neither replaced nor removed
_ATTEMPTS, _PAUSE_SECONDS = 50, 0.02  # a second in all
_MAX_BUFFERS = 512  # below every platform's IOV_MAX
_JUNCTION = 0xA0000003  # Windows' IO_REPARSE_TAG_MOUNT_POINT, which `is_symlink` does not see
# What every file of a dataset is opened with: a folder from somebody else may hold links to what is not its own.
OWN_FILE = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class OpenFile:
    """One file open for positional reads from any number of threads. It closes when the last reference goes."""

    __slots__ = ("_lock", "fd", "identity", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self.fd = -1
        self.fd = _open_regular(path)
        status = os.fstat(self.fd)
        self.size = status.st_size
        # What tells this file from one that was put in its place.
        self.identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def read_into(self, offset: int, buffers: Sequence[memoryview], nbytes: int) -> None:
        """Fill `buffers`, `nbytes` in all, one after the other with the bytes from `offset` on."""
        try:
            if not HAS_PREADV:
                return self._seek_and_read(offset, buffers)
            found = os.preadv(self.fd, buffers, offset) if len(buffers) <= _MAX_BUFFERS else 0
            if found != nbytes:
                self._read_rest(offset, buffers, found)
        except OSError as error:
            raise CacheError(f"{self.path}: cannot be read: {error.strerror}") from error

    def read(self, offset: int, size: int) -> bytearray:
        data = bytearray(size)
        if size:
            self.read_into(offset, [memoryview(data)], size)
        return data

    def will_need(self, offset: int, size: int) -> None:
        """Ask the system to start reading this range, where it takes such hints."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self.fd, offset, size, os.POSIX_FADV_WILLNEED)

    def _read_rest(self, offset: int, buffers: Sequence[memoryview], found: int) -> None:
        """Go on after a short read: a signal, more than 2 GB or too many buffers at once."""
        for buffer in buffers:
            skipped = min(found, len(buffer))
            found -= skipped
            while skipped < len(buffer):
                count = os.preadv(self.fd, [buffer[skipped:]], offset + skipped)
                if count == 0:
                    raise CacheError(f"{self.path}: ends at {offset + skipped:,}, before the data that it should hold")
                skipped += count
            offset += len(buffer)

    def _seek_and_read(self, offset: int, buffers: Sequence[memoryview]) -> None:
        with self._lock:
            os.lseek(self.fd, offset, os.SEEK_SET)
            for buffer in buffers:
                done = 0
                while done < len(buffer):
                    count = _readinto(self.fd, buffer[done:])
                    if count == 0:
                        raise CacheError(f"{self.path}: ends before the data that it should hold")
                    done += count

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def write_all(fd: int, data: memoryview | bytes) -> None:
    """`os.write` until everything is written."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def start_writing(fd: int, offset: int, size: int) -> None:
    """Ask the system to begin writing this range to disk, where it takes such hints, so that a later fsync is short."""
    if hasattr(os, "posix_fadvise"):
        # On Linux this begins at once and does not wait; pages on their way to the disk stay in the page cache.
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` at `path` in one durable step: readers see the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with create_file(temporary) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        move_file(temporary, path)
    finally:
        remove_file(temporary)
    sync_folder(path.parent)


def create_file(path: Path) -> BinaryIO:
    """A new file for what is to be written. What has the name, as a link could, is not written into but replaced."""
    with contextlib.suppress(FileNotFoundError):
        _patiently(os.unlink, path)
    return open(path, "xb")


def move_file(source: Path, target: Path) -> None:
    """Give a file another name, in the place of what had it."""
    _patiently(os.replace, source, target)


def sync_folder(folder: Path) -> None:
    """Make new names in `folder` durable. Windows has no such call and needs none."""
    if os.name == "nt":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def link_or_copy(source: Path, target: Path) -> bool:
    """A second name for an immutable file, or a durable copy of it where there are no links. True if it is a link."""
    if HAS_LINKS:
        try:
            os.link(source, target)
            return True
        except OSError:
            pass  # another file system, or one without links: copying always works
    with open(source, "rb") as old, open(target, "wb") as new:
        shutil.copyfileobj(old, new, 1 << 20)
        new.flush()
        os.fsync(new.fileno())
    return False


def is_link(path: Path) -> bool:
    """Whether a name leads to another place: a symbolic link, or a junction of Windows."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):  # it is not there
        return False
    return stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) == _JUNCTION


def refuse_link(path: Path) -> None:
    if is_link(path):
        raise CacheError(f"{path}: is a symbolic link; a cache holds only files of its own")


def is_regular(path: Path) -> bool:
    """Whether a file itself stands there: no link, no pipe that would keep waiting whoever opens it."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def remove_file(path: Path) -> bool:
    """Remove a file. False if that cannot be, as when it is held open on Windows; a later run removes it."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _open_regular(path: Path) -> int:
    try:
        # Asked before it is opened: opening a pipe would wait for somebody to write into it.
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            what = "a symbolic link" if stat.S_ISLNK(mode) else "no file"
            raise CacheError(f"{path}: is {what}; a cache holds only files of its own")
        fd = _patiently(os.open, path, os.O_RDONLY | OWN_FILE)
    except FileNotFoundError as error:
        raise CacheError(f'{path}: is missing; restore it, or run "streamcache verify" on the cache') from error
    except OSError as error:
        raise CacheError(f"{path}: cannot be opened: {error.strerror}") from error
    return fd


def _patiently(call: Callable[..., Any], *args: Any) -> Any:
    """Where open files are locked, wait for somebody who just looks at one, or is just putting it in place."""
    for _ in range(_ATTEMPTS if LOCKS_OPEN_FILES else 0):
        try:
            return call(*args)
        except PermissionError:
            time.sleep(_PAUSE_SECONDS)
    return call(*args)


def _readinto(fd: int, buffer: memoryview) -> int:
    if hasattr(os, "readinto"):  # Python 3.14
        return os.readinto(fd, buffer)
    with open(fd, "rb", buffering=0, closefd=False) as file:
        return file.readinto(buffer)
