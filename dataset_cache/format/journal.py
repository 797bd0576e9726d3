"""The journal of an unfinished build: one line per record; everything before a crash stays readable.

Every line has a checksum of itself and of all lines before it: a torn, damaged, missing or misplaced line ends the
journal.
"""

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

import xxhash

from ...errors import CacheError, CacheUnreadable
from ..stored_file import GrowingFile, stream
from .storage import Storage

JOURNAL = "journal"
MAX_LINE = 256 << 20  # no writer makes a longer one; it is not read into memory
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Journal:
    """Records collect in memory and reach the disk together, on `flush`. An existing journal is continued."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        self._file: GrowingFile | None = None
        self._end = self._checksum = 0
        self._records: list[bytes] = []

    def append(self, **record: Any) -> None:
        self._records.append(_encode(record).encode())

    def flush(self) -> None:
        if not self._records:
            return
        file = self._file or self._open()
        lines, checksum = [], self._checksum
        for record in self._records:
            checksum = _checksum(record, checksum)
            lines.append(b"%016x %s\n" % (checksum, record))
        data = b"".join(lines)
        # Behind the last complete line: an earlier flush may have filled the disk in the middle of a line.
        file.write(self._end, data)
        file.truncate(self._end + len(data))
        file.sync()
        self._records.clear()
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
    """The records up to the first torn or damaged line; none if the file is missing or not a file.

    Raises CacheUnreadable if it cannot be read now: what an unfinished build contains must not be forgotten.
    """
    try:
        file = storage.open(name)
    except CacheUnreadable:
        raise
    except CacheError:
        return
    with stream(file) as lines:
        for record, _, _ in _read_lines(lines):
            try:
                value = json.loads(record)
            except (ValueError, RecursionError):
                return
            yield value


def _read_lines(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """(record, checksum so far, end of the line) of every valid line from the first on."""
    checksum = end = 0
    while line := file.readline(MAX_LINE):
        stated, _, record = line.partition(b" ")
        record = record[:-1]
        checksum = _checksum(record, checksum)
        if not line.endswith(b"\n") or stated != b"%016x" % checksum:
            return
        end += len(line)
        yield record, checksum, end


def _checksum(record: bytes, before: int) -> int:
    return xxhash.xxh3_64_intdigest(record, before)
