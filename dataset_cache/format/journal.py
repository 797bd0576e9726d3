"""The journal of an unfinished build: one line a fact, so that what was written before a kill can be read after it.

Every line has a checksum of itself and of all lines before it: a line that is torn, damaged, missing or out of place
ends the journal.
"""

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

import xxhash

from ..errors import CacheError
from .storage import GrowingFile, Storage, stream

JOURNAL = "journal"
MAX_LINE = 256 << 20  # a longer one nobody wrote; it is not taken into memory
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Journal:
    """Lines collect in memory and reach the disk together, at `flush`. An existing journal is continued."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        self._file: GrowingFile | None = None
        self._end = self._checksum = 0
        self._facts: list[bytes] = []

    def append(self, **fact: Any) -> None:
        self._facts.append(_encode(fact).encode())

    def flush(self) -> None:
        if not self._facts:
            return
        file = self._file or self._open()
        lines, checksum = [], self._checksum
        for fact in self._facts:
            checksum = _checksum(fact, checksum)
            lines.append(b"%016x %s\n" % (checksum, fact))
        data = b"".join(lines)
        # Behind the last complete line: an earlier flush may have filled the disk in the middle of a line.
        file.write(self._end, data)
        file.truncate(self._end + len(data))
        file.sync()
        self._facts.clear()
        self._end, self._checksum = self._end + len(data), checksum

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> GrowingFile:
        exists = self._storage.stat(self._name) is not None
        self._file = self._storage.edit(self._name, new=not exists)
        self._end = self._checksum = 0
        if exists:
            with stream(self._storage.open(self._name)) as lines:
                for _, self._checksum, self._end in _read_lines(lines):
                    pass
        return self._file


def read_journal(storage: Storage, name: str) -> Iterator[dict[str, Any]]:
    """The facts up to the first line that is torn or damaged."""
    try:
        file = storage.open(name)
    except CacheError:
        return
    with stream(file) as lines:
        for fact, _, _ in _read_lines(lines):
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
