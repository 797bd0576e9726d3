"""Source files: their stamps, what reading one reveals (size, content hash, text), and an image in a file.

A stamp (size, mtime, inode, ctime) tells whether a file changed since it was read.
"""

from __future__ import annotations

import io
import os
import stat
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import xxhash

from ...errors import SourceUnreadable, Unusable
from . import captions, images
from .headers import Header
from .images import Picture

STAMP_BYTES = 32
UNSETTLED = bytes(STAMP_BYTES)  # the stamp of a file that must be read again next time
# Lowercase extension → reads the header of such a file. Folders list these files, and captions.
PROBES: dict[str, Callable[[BinaryIO], Header]] = dict.fromkeys(images.EXTENSIONS, images.probe)
_LISTS_INODES = os.name != "nt"  # on Windows a directory listing has inode 0, so stat's inode is ignored as well
_TICK_NS = 20_000_000  # two changes within one tick of the kernel's clock leave the same times
_COARSE_TICK_NS = 2_000_000_000  # on file systems with a resolution of whole seconds
_AHEAD_NS = 24 * 3600 * 1_000_000_000  # the clock of a file server may be ahead, but not by a day
_CHUNK = 1 << 20
_TRIES = 3
_CHANGED = "it changed while it was being read"
_SMALL = 1 << 15  # bytes
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOINHERIT", 0)


@dataclass(frozen=True)
class Listing:
    """The relevant files of one folder. `stamps` has 32 bytes per name, or is empty if files are trusted."""

    directory: str
    names: list[str]
    stamps: bytes
    digest: bytes

    def rows(self) -> Iterator[tuple[str, bytes]]:
        stamps = self.stamps
        for at, name in enumerate(self.names):
            yield name, stamps[at * STAMP_BYTES : (at + 1) * STAMP_BYTES]


@dataclass(frozen=True, slots=True)
class Facts:
    """What reading a source file revealed. `content` is empty if only the header was read.

    `unreadable`: the error says nothing about the file, which cannot be read now. It is not remembered.
    """

    content: bytes = b""
    width: int = 0
    height: int = 0
    alpha: bool = False
    format: str = ""
    text: str | None = None
    error: str = ""
    unreadable: bool = False


FileRecord = tuple[str, str, bytes, Facts]  # directory, name, stamp, facts: as SourceMemory keeps them


class SourceImage(Protocol):
    """An image of a source that can be read when needed. `content` is empty until it is hashed, which `read` does."""

    @property
    def content(self) -> bytes: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def alpha(self) -> bool: ...

    def read(self) -> Reading: ...


class Reading(Protocol):
    """The current bytes of an image, with their hash."""

    @property
    def content(self) -> bytes: ...

    def decode(self, background: tuple[int, int, int]) -> Picture: ...

    def probe(self) -> Header: ...

    def record(self, facts: Facts) -> FileRecord | None:
        """What to remember about the file for the next run; None if the image is not a file."""
        ...


@dataclass(frozen=True, slots=True)
class FileImage:
    """An image file. `content` is empty if the file is not hashed yet."""

    directory: str
    name: str
    content: bytes
    width: int
    height: int
    alpha: bool

    def read(self) -> FileReading:
        stamp, data = read_bytes(os.path.join(self.directory, self.name))
        return FileReading(self, content_hash(data), data, stamp)


@dataclass(frozen=True, slots=True)
class FileReading:
    """The bytes of an image file, with their hash and the stamp of the file when it was read."""

    image: FileImage
    content: bytes
    data: bytes
    stamp: bytes

    def decode(self, background: tuple[int, int, int]) -> Picture:
        return images.decode(self.data, background)

    def probe(self) -> Header:
        return PROBES.get(extension_of(self.image.name), images.probe)(io.BytesIO(self.data))

    def record(self, facts: Facts) -> FileRecord:
        return self.image.directory, self.image.name, self.stamp, facts


def image_file(facts: Facts, directory: str, name: str) -> FileImage:
    return FileImage(directory, name, facts.content, facts.width, facts.height, facts.alpha)


def extension_of(name: str) -> str:
    return name.rpartition(".")[2].lower()


def content_hash(data: bytes | memoryview) -> bytes:
    return xxhash.xxh3_128_digest(data)


def stamp_of(status: os.stat_result) -> bytes:
    inode = status.st_ino if _LISTS_INODES else 0
    return pack_stamps([status.st_size, status.st_mtime_ns, inode, status.st_ctime_ns])


def pack_stamps(numbers: list[int]) -> bytes:
    """Stamps from size, mtime, inode and ctime of each file."""
    try:
        return array("q", numbers).tobytes()
    except OverflowError:  # inode numbers may use all 64 bits, or more
        return array("q", [hash(number) for number in numbers]).tobytes()


def is_settled(stamp: bytes, read_at_ns: int) -> bool:
    """Whether any change since the file was read at that time would show in its stamp."""
    _, modified, _, changed = array("q", stamp)
    if os.name == "nt":  # ctime is the creation time on Windows; elsewhere programs can set mtime to anything
        changed = modified
    tick = _TICK_NS if changed % 1_000_000_000 else _COARSE_TICK_NS
    return is_past(changed, read_at_ns, tick)


def is_past(changed_ns: int, now_ns: int, tick_ns: int) -> bool:
    """Whether a change from now on would have another time. So it would if this one is far ahead: a clock was wrong."""
    return changed_ns < now_ns - tick_ns or changed_ns > now_ns + _AHEAD_NS


def read_facts(path: str, whole: bool) -> tuple[bytes, Facts]:
    """Read a file's stamp and facts. The content of an image is hashed only if `whole`.

    The stamp is UNSETTLED if it cannot be relied on: the file is unreadable, or was written a moment ago.
    """
    try:
        for _ in range(_TRIES):
            started = time.time_ns()
            with _opened(path) as (number, status):
                stamp = stamp_of(status)
                facts = _read(path, _contents(number, status), whole)
                if stamp_of(os.fstat(number)) == stamp:
                    return stamp if is_settled(stamp, started) else UNSETTLED, facts
    except Unusable as error:
        return UNSETTLED, Facts(error=str(error), unreadable=isinstance(error, SourceUnreadable))
    return UNSETTLED, Facts(error=_CHANGED, unreadable=True)


def read_bytes(path: str) -> tuple[bytes, bytes]:
    """A file's stamp and the bytes that belong to it; UNSETTLED as in read_facts."""
    for _ in range(_TRIES):
        started = time.time_ns()
        with _opened(path) as (number, status):
            stamp = stamp_of(status)
            data = _contents(number, status).read()
            if stamp_of(os.fstat(number)) == stamp:
                return stamp if is_settled(stamp, started) else UNSETTLED, data
    raise SourceUnreadable(_CHANGED)


@contextmanager
def _opened(path: str) -> Iterator[tuple[int, os.stat_result]]:
    """Open a regular file: its descriptor and status. Reading a pipe or a device could block forever."""
    try:
        _refuse_others(os.stat(path))
        number = os.open(path, _FLAGS)
        try:
            status = os.fstat(number)
            _refuse_others(status)
            yield number, status
        finally:
            os.close(number)
    except OSError as error:
        raise SourceUnreadable(f"cannot be read: {error.strerror or error}") from error


def _contents(number: int, status: os.stat_result) -> BinaryIO:
    """An open file. A small one is read at once: a folder may have 100,000 captions."""
    if status.st_size > _SMALL:
        return open(number, "rb", closefd=False)
    data = os.read(number, _SMALL + 1)
    if len(data) == status.st_size:
        return io.BytesIO(data)
    os.lseek(number, 0, os.SEEK_SET)  # it changes meanwhile, or came in parts
    return open(number, "rb", closefd=False)


def _refuse_others(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise Unusable("cannot be read: not a regular file")


def _read(path: str, file: BinaryIO, whole: bool) -> Facts:
    name = os.path.basename(path)
    if captions.is_text(name):
        data = file.read()
        try:
            return Facts(content_hash(data), text=captions.decode_text(name, data))
        except Unusable as error:
            return Facts(content_hash(data), error=str(error))
    content = _hash(file) if whole else b""
    try:
        header = PROBES.get(extension_of(name), images.probe)(file)
    except SourceUnreadable:
        raise
    except Unusable as error:
        return Facts(content, error=str(error))
    return Facts(content, header.width, header.height, header.alpha, header.format)


def _hash(file: BinaryIO) -> bytes:
    digest = xxhash.xxh3_128()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    file.seek(0)
    return digest.digest()
