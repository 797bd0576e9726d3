"""The journal of an unfinished build: one line a fact, each with its checksum, so that a torn tail is seen."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

from .storage import write_all

NAME = "journal"
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Journal:
    """Lines collect in memory and reach the disk together, at `flush`."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
        self._lines: list[bytes] = []

    def append(self, **fact: Any) -> None:
        text = _encode(fact).encode()
        self._lines.append(_checksum(text) + b" " + text + b"\n")

    def flush(self) -> None:
        if self._lines:
            write_all(self._fd, b"".join(self._lines))
            os.fsync(self._fd)
            self._lines.clear()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The facts up to the first line that is torn or damaged."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        for line in file:
            checksum, _, text = line.rstrip(b"\n").partition(b" ")
            if not line.endswith(b"\n") or checksum != _checksum(text):
                return
            yield json.loads(text)


def _checksum(text: bytes) -> bytes:
    return xxhash.xxh3_64(text).hexdigest().encode()
