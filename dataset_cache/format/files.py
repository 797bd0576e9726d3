"""One file on a local disk: positional reads, durable writes and links, and what a platform lacks.

Datasets are reached through `storage`, which builds on this.
"""

import contextlib
import errno
import hashlib
import mmap
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from ...errors import CacheError, CacheUnreachable, CacheUnreadable

# Tests switch these off to run the code paths of platforms that lack the calls (Windows has neither).
HAS_PREADV = hasattr(os, "preadv")
HAS_LINKS = hasattr(os, "link")
LOCKS_OPEN_FILES = os.name == "nt"  # an open file can be neither replaced nor removed
_ATTEMPTS, _PAUSE_SECONDS = 50, 0.02  # one second in total
_PAUSES = (0.05, 0.2, 0.5)  # seconds before another attempt: disks and networks often recover
_MAX_BYTES = 255  # of a name, on common file systems
_TEMPORARY_BYTES = len("..4194304.tmp")
_MAX_BUFFERS = 512  # below every platform's IOV_MAX
_JUNCTION = 0xA0000003  # Windows' IO_REPARSE_TAG_MOUNT_POINT, which `is_symlink` does not see
T = TypeVar("T")
# Flags for every file of a cache: a folder from an untrusted source may contain links to other files, and pipes, which
# would block the process that opens them.
OWN_FILE = sum(getattr(os, f"O_{name}", 0) for name in ("BINARY", "NOFOLLOW", "CLOEXEC", "NONBLOCK"))


class OpenFile:
    """One file open for positional reads from any number of threads. It closes with its last reference."""

    __slots__ = ("_fd", "_lock", "identity", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._fd = -1
        self._fd = _open_regular(path)
        status = os.fstat(self._fd)
        self.size = status.st_size
        # Changes if another file takes the place of this one.
        self.identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    @property
    def name(self) -> str:
        return self.path.name

    def read_into(self, offset: int, buffers: Sequence[memoryview], nbytes: int) -> None:
        """Fill `buffers`, `nbytes` in total, one after the other, starting at `offset`."""
        try:
            if not HAS_PREADV:
                return self._seek_and_read(offset, buffers)
            found = os.preadv(self._fd, buffers, offset) if len(buffers) <= _MAX_BUFFERS else 0
            if found != nbytes:
                self._read_rest(offset, buffers, found)
        except OSError as error:
            raise error_kind(error)(f"{self.path}: cannot be read: {error.strerror}") from error

    def read(self, offset: int, size: int) -> bytearray:
        data = bytearray(size)
        if size:
            self.read_into(offset, [memoryview(data)], size)
        return data

    def will_need(self, offset: int, size: int) -> None:
        """Ask the system to start reading this range, if it accepts such hints."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_WILLNEED)

    def map(self) -> memoryview:
        """The whole file as read-only memory."""
        try:
            return memoryview(mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:  # an empty file is a ValueError
            raise error_kind(error)(f"{self.path}: cannot be mapped: {error}") from error

    def _read_rest(self, offset: int, buffers: Sequence[memoryview], found: int) -> None:
        """Continue after a short read: a signal, more than 2 GB or too many buffers at once."""
        for buffer in buffers:
            skipped = min(found, len(buffer))
            found -= skipped
            while skipped < len(buffer):
                count = os.preadv(self._fd, [buffer[skipped:]], offset + skipped)
                if count == 0:
                    raise self._too_short(offset + skipped)
                skipped += count
            offset += len(buffer)

    def _seek_and_read(self, offset: int, buffers: Sequence[memoryview]) -> None:
        with self._lock:
            os.lseek(self._fd, offset, os.SEEK_SET)
            for buffer in buffers:
                done = 0
                while done < len(buffer):
                    count = _readinto(self._fd, buffer[done:])
                    if count == 0:
                        raise self._too_short(os.lseek(self._fd, 0, os.SEEK_CUR))
                    done += count

    def _too_short(self, end: int) -> CacheError:
        return CacheError(f"{self.path}: ends at {end:,}, before the data that it should contain")

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class WritableFile:
    """One file open for writes at any position. Nothing is durable before `sync`."""

    __slots__ = ("_fd",)

    def __init__(self, path: Path, new: bool = False) -> None:
        """Open an existing file, or with `new` create one under a name that is still free."""
        self._fd = -1
        self._fd = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if new else 0) | OWN_FILE, 0o666)
        if not new:
            _refuse_others(path, os.fstat(self._fd).st_mode)

    def write(self, offset: int, data: memoryview | bytes) -> None:
        # A seek before each write: an interrupted write or a read may have left the position anywhere.
        os.lseek(self._fd, offset, os.SEEK_SET)
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def read(self, offset: int, size: int) -> bytes:
        os.lseek(self._fd, offset, os.SEEK_SET)
        with open(self._fd, "rb", closefd=False) as file:
            return file.read(size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def start_writing(self, offset: int, size: int) -> None:
        """Ask the system to begin writing this range to disk, if it accepts such hints, so that `sync` is short."""
        if hasattr(os, "posix_fadvise"):
            # On Linux this begins at once and does not wait; pages on their way to the disk stay in the page cache.
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_DONTNEED)

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def locks_open_files() -> bool:
    """Whether open files, and the folders that contain them, can be neither moved nor removed, as on Windows."""
    return LOCKS_OPEN_FILES


def is_long_name(name: str) -> bool:
    """Whether a name has too many bytes for `name.safetensors` and the temporary file that it is written to."""
    longest = _MAX_BYTES - _TEMPORARY_BYTES - len(".safetensors")
    return len(name.encode("utf-8", "surrogatepass")) > longest


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` at `path` in one durable step: readers see the old file or the new one, never a part."""
    with replacing(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path, writer: str = "") -> Iterator[BinaryIO]:
    """A new file that takes the place of `path`, durably, when the `with` ends without an error.

    `writer` tells several of one process apart.
    """
    name = os.fsencode(path.name)
    kept = (
        path.name if len(name) <= _MAX_BYTES - _TEMPORARY_BYTES else hashlib.blake2b(name, digest_size=16).hexdigest()
    )
    temporary = path.with_name(f".{kept}.{os.getpid()}{writer}.tmp")
    try:
        with create_file(temporary) as file:
            yield file
        move_file(temporary, path)
    finally:
        remove_file(temporary)
    sync_folder(path.parent)


@contextlib.contextmanager
def create_file(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """A new file. Whatever has the name, even a link, is removed and never written into."""
    with contextlib.suppress(FileNotFoundError):
        _patiently(os.unlink, path)
    with open(path, "xb") as file:
        yield file
        if durable:
            file.flush()
            os.fsync(file.fileno())


def move_file(source: Path, target: Path) -> None:
    """Rename a file, replacing the target."""
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
    """A second name for an immutable file, or a durable copy if links do not work. True if it is a link."""
    if HAS_LINKS:
        try:
            os.link(source, target)
            return True
        except OSError:
            pass  # another file system, or one without links: copying always works
    with open(_open_regular(source), "rb") as old, create_file(target) as new:
        shutil.copyfileobj(old, new, 1 << 20)
    return False


def remove_file(path: Path) -> bool:
    """Remove a file if it exists. False if that fails, as for an open file on Windows; a later run removes it."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def is_link(path: Path) -> bool:
    """Whether a name leads to another place: a symbolic link, or a junction on Windows."""
    try:
        return is_link_status(os.lstat(path))
    except (OSError, ValueError):  # it is missing
        return False


def is_link_status(status: os.stat_result) -> bool:
    return stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) == _JUNCTION


def refuse_link(path: Path) -> None:
    if is_link(path):
        raise CacheError(f"{path}: is a symbolic link; a cache contains only files of its own")


def is_regular(path: Path) -> bool:
    """Whether this is a file: not a link, and not a pipe that would block the process that opens it."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def error_kind(error: OSError | ValueError) -> type[CacheError]:
    """Whether a name is wrong, or a file cannot be read now, which says nothing about its content."""
    known = isinstance(error, ValueError) or error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
    return CacheError if known else CacheUnreadable


def retrying(read: Callable[[], T]) -> T:
    """The result of `read`, which is called again after a pause if a file is unreadable."""
    for pause in _PAUSES:
        try:
            return read()
        except CacheUnreachable:  # was retried already
            raise
        except CacheUnreadable:
            time.sleep(pause)
    return read()


def _open_regular(path: Path) -> int:
    fd = -1
    try:
        # Checked before opening too, for systems without the flags that refuse links and do not wait for pipes.
        _refuse_others(path, os.lstat(path).st_mode)
        fd = _patiently(os.open, path, os.O_RDONLY | OWN_FILE)
        _refuse_others(path, os.fstat(fd).st_mode)
    except FileNotFoundError as error:
        raise CacheError(f'{path}: is missing; restore it, or run "streamcache verify" on the cache') from error
    except OSError as error:
        raise error_kind(error)(f"{path}: cannot be opened: {error.strerror}") from error
    except CacheError:
        if fd >= 0:
            os.close(fd)
        raise
    return fd


def _refuse_others(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        what = "a symbolic link" if stat.S_ISLNK(mode) else "not a file"
        raise CacheError(f"{path}: is {what}; a cache contains only files of its own")


def _patiently(call: Callable[..., Any], *args: Any) -> Any:
    """If open files are locked, wait for a process that is just reading this one or just putting it in place."""
    for _ in range(_ATTEMPTS if LOCKS_OPEN_FILES else 0):
        try:
            return call(*args)
        except PermissionError:
            time.sleep(_PAUSE_SECONDS)
    return call(*args)


def _readinto(fd: int, buffer: memoryview) -> int:
    if hasattr(os, "readinto"):  # Python 3.14
        return os.readinto(fd, buffer)  # pyright: ignore[reportAttributeAccessIssue] - newer than the type stubs
    with open(fd, "rb", buffering=0, closefd=False) as file:
        return file.readinto(buffer)
