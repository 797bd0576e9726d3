"""Facts: what one source file holds, as far as the dataset's layout depends on it: content hash, size, text."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import xxhash

from ..errors import Unusable
from . import captions, images
from .scan import UNSETTLED, is_settled, stamp_of

_CHUNK = 1 << 20
_TRIES = 3
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)


@dataclass(frozen=True, slots=True)
class Facts:
    """What reading a source file told. `content` is empty while only its header was read."""

    content: bytes = b""
    width: int = 0
    height: int = 0
    alpha: bool = False
    format: str = ""
    text: str | None = None
    error: str = ""


def content_hash(data: bytes | memoryview) -> bytes:
    return xxhash.xxh3_128_digest(data)


def read_facts(path: str, whole: bool) -> tuple[bytes, Facts]:
    """Read a file: its stamp and what it holds. A picture's content is hashed only if its `whole` file is to be read.

    The stamp is UNSETTLED where it must not be relied on: the file could not be read, or was written a moment ago.
    """
    try:
        for _ in range(_TRIES):
            started = time.time_ns()
            with _opened(path) as file:
                stamp = stamp_of(os.fstat(file.fileno()))
                facts = _read(path, file, whole)
                if stamp_of(os.fstat(file.fileno())) == stamp:
                    return stamp if is_settled(stamp, started) else UNSETTLED, facts
    except OSError as error:
        return UNSETTLED, Facts(error=f"cannot be read: {error.strerror or error}")
    return UNSETTLED, Facts(error="it changed while it was read")


def read_bytes(path: str) -> tuple[bytes, bytes]:
    """A file's stamp and bytes, which belong together; UNSETTLED as in read_facts."""
    try:
        for _ in range(_TRIES):
            started = time.time_ns()
            with _opened(path) as file:
                stamp = stamp_of(os.fstat(file.fileno()))
                data = file.read()
                if stamp_of(os.fstat(file.fileno())) == stamp:
                    return stamp if is_settled(stamp, started) else UNSETTLED, data
    except OSError as error:
        raise Unusable(f"cannot be read: {error.strerror or error}") from None
    raise Unusable("it changed while it was read")


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """A regular file. Anything else would give no bytes, or make us wait for them for ever."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_WAITING)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        yield file


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
        header = images.probe(file)
    except Unusable as error:
        return Facts(content, error=str(error))
    return Facts(content, header.width, header.height, header.alpha, header.format)


def _hash(file: BinaryIO) -> bytes:
    digest = xxhash.xxh3_128()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    file.seek(0)
    return digest.digest()
