"""Local copies of indexes of remote datasets, because an index is mapped. Each is verified; processes share them."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from ...errors import CacheError
from ..format import Lock, MemoryFile, OpenFile, StoredFile, is_regular, replacing, take_lock
from ..local_folders import copies_folder

LIMIT_BYTES = 8 << 30  # of all copies together; those that were not used for the longest time go first
_ALWAYS_CHECKED_BYTES = 64 << 20  # a smaller copy is compared with its hash whenever it is opened: 10 ms at most
_compared: dict[Path, tuple[Any, ...]] = {}  # larger ones: once in a process, and again if the file has changed
_UNFINISHED_SECONDS = 24 * 3600  # after this long without a write, the process that was copying was killed
_PATIENCE_SECONDS = 20.0  # for another process that is copying the same index; then this one copies it too

Pieces = Callable[[], Iterator[bytearray]]  # the content of the remote file, in order


def open_copy(place: str, name: str, dataset: str, nbytes: int, digest: str, pieces: Pieces) -> StoredFile:
    """The local copy of a file, made if it is missing. In memory, if nothing can be written here."""
    folder = copies_folder() / "indexes" / dataset
    path = folder / name
    found = _open_valid(path, nbytes, digest)
    if found is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _held(path):
                found = _open_valid(path, nbytes, digest)  # another process was faster
                if found is None:
                    # Without the lock, another thread may be writing the same file.
                    with replacing(path, str(threading.get_native_id())) as file:
                        _receive(place, file, nbytes, digest, pieces)
                    found = OpenFile(path)
            remove_old(path)
        except OSError:  # the disk is full or read-only
            return _in_memory(place, name, nbytes, digest, pieces)
    with contextlib.suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))  # used now, and not changed
    return found


def remove_old(kept: Path | None = None, limit: int = LIMIT_BYTES) -> None:
    """Remove what killed processes have left, and the copies that were not used for the longest time, until the others
    are within the limit.
    """
    copies = []
    for path in (copies_folder() / "indexes").glob("*/*.safetensors"):
        with contextlib.suppress(OSError):  # another process removed it
            status = path.lstat()
            copies.append((path != kept, -status.st_atime, status.st_size, path))
    for path in (copies_folder() / "indexes").glob("*/.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > _UNFINISHED_SECONDS:
                path.unlink()
    total = 0
    for _, _, size, path in sorted(copies):
        total += size
        if total > limit and path != kept:
            with contextlib.suppress(OSError):  # Windows keeps what is mapped
                path.unlink()


def _open_valid(path: Path, nbytes: int, digest: str) -> OpenFile | None:
    """A copy that is whole. Anything else in its place is replaced."""
    if not is_regular(path):
        return None
    try:
        file = OpenFile(path)
        if file.size != nbytes:
            return None
        as_it_is = (digest, *file.identity)
        if nbytes <= _ALWAYS_CHECKED_BYTES or _compared.get(path) != as_it_is:
            if nbytes and xxhash.xxh3_128(file.map()).hexdigest() != digest:
                return None
            _compared[path] = as_it_is
        return file
    except CacheError:
        return None


def _receive(place: str, file: BinaryIO, nbytes: int, digest: str, pieces: Pieces) -> None:
    found, size = xxhash.xxh3_128(), 0
    for piece in pieces():
        found.update(piece)
        file.write(piece)
        size += len(piece)
    if size != nbytes or found.hexdigest() != digest:
        what = f"has {size:,} bytes, {nbytes:,} expected" if size != nbytes else "its content does not match its hash"
        raise CacheError(f"{place}: {what}; the upload is damaged or was replaced: push the dataset again")


def _in_memory(place: str, name: str, nbytes: int, digest: str, pieces: Pieces) -> MemoryFile:
    data = bytearray().join(pieces())
    if len(data) != nbytes or xxhash.xxh3_128(data).hexdigest() != digest:
        raise CacheError(f"{place}: its content does not match its hash; push the dataset again")
    return MemoryFile(data, name)


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """One process copies. Without the lock, several would, each to a file of its own, and all would be right."""
    lock: Lock | None = None
    file = path.with_name(f".{path.name}.lock")
    with contextlib.suppress(OSError):
        lock = take_lock(file, _PATIENCE_SECONDS)
    try:
        yield
    finally:
        if lock is not None:
            with contextlib.suppress(OSError):  # Windows keeps it until it is released, and removes it then
                file.unlink()
            lock.release()
