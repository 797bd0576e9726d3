"""The journal of an unfinished build: one line a fact, so that what was written before a kill can be read after it.

Every line has a checksum of itself and of all lines before it: a line that is torn, damaged, missing or out of place
ends the journal.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from .storage import OWN_FILE, is_regular, write_all

JOURNAL = "journal"
MAX_LINE = 256 << 20  # a longer one nobody wrote; it is not taken into memory
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Journal:
    """Lines collect in memory and reach the disk together, at `flush`. An existing journal is continued."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._end = self._checksum = 0
        self._facts: list[bytes] = []

    def append(self, **fact: Any) -> None:
        self._facts.append(_encode(fact).encode())

    def flush(self) -> None:
        if not self._facts:
            return
        self._open()
        lines, checksum = [], self._checksum
        for fact in self._facts:
            checksum = _checksum(fact, checksum)
            lines.append(b"%016x %s\n" % (checksum, fact))
        data = b"".join(lines)
        # Where the last whole line ended: an earlier flush may have filled the disk in the middle of a line.
        os.lseek(self._fd, self._end, os.SEEK_SET)
        write_all(self._fd, data)
        os.ftruncate(self._fd, self._end + len(data))
        os.fsync(self._fd)
        self._facts.clear()
        self._end, self._checksum = self._end + len(data), checksum

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | OWN_FILE, 0o666)
            self._end = self._checksum = 0
            with open(self._path, "rb") as file:
                for _, self._checksum, self._end in _read_lines(file):
                    pass


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The facts up to the first line that is torn or damaged."""
    if not is_regular(path):
        return
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError:
        return
    with file:
        for fact, _, _ in _read_lines(file):
            try:
                value = json.loads(fact)
            except (ValueError, RecursionError):
                return
            yield value


def _read_lines(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """(fact, checksum up to here, end of its line) of every good line from the first on."""
    checksum = end = 0
    while line := file.readline(MAX_LINE):
        stated, _, fact = line.partition(b" ")
        fact = fact[:-1]
        checksum = _checksum(fact, checksum)
        if not line.endswith(b"\n") or stated != b"%016x" % checksum:
            return
        end += len(line)
        yield fact, checksum, end


def _checksum(fact: bytes, before: int) -> int:
    return xxhash.xxh3_64_intdigest(fact, before)
