"""Pieces of shards as local copies: a folder of them that processes share, or memory where there is no folder.

A piece is named by the hash of its shard and its place in it, so it never goes stale. Every copy may vanish at any
time: what it holds is in the shard. A file is written under a name of its own, then renamed, and ends with a checksum:
a piece that is cut off, also by a power failure, counts as missing.
"""

import contextlib
import itertools
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import xxhash

from ...errors import CacheError
from ..format import LocalStorage

READERS = "readers"  # a lock per process that uses the folder
CLAIM_SECONDS = 600  # for which other processes leave a piece alone that was fetched and not used yet
_CHECKSUM_BYTES = 16
_LOOK_SECONDS = 5.0  # between two looks at who else uses the folder
_SHARD = re.compile(r"[0-9a-f]{8,64}")
_PIECE = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16})")
_UNFINISHED = re.compile(r"\.([0-9a-f]+)\.[0-9]+")


class Piece(NamedTuple):
    """Adjacent bytes of a shard, which the hash of its header names."""

    shard: str
    start: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.shard}/{self.start:x}-{self.size:x}"


class PieceStore(Protocol):
    """Where copies of pieces are."""

    def pieces(self) -> Iterator[Piece]: ...

    def has(self, piece: Piece) -> bool: ...

    def read(self, piece: Piece) -> memoryview | None:
        """The piece, or None if it is missing or damaged; a damaged one is removed."""
        ...

    def write(self, piece: Piece, data: memoryview) -> None:
        """Keep a copy. Raises OSError if that fails."""
        ...

    def claim(self, piece: Piece) -> None:
        """Ask other processes to leave the piece alone for a while."""
        ...

    def release(self, piece: Piece) -> None:
        """Other processes may remove it again."""
        ...

    def remove(self, piece: Piece) -> bool:
        """Remove a copy. False if another process needs it."""
        ...

    def oldest_first(self, pieces: list[Piece]) -> list[Piece]:
        """The pieces in the order of their last use."""
        ...

    def others(self) -> int:
        """How many other readers use the same store."""
        ...

    def close(self) -> None: ...


class PieceFolder:
    """Pieces in a folder that any number of processes use at once. They need no lock: pieces appear whole or never.

    The time of a file says until when a process needs it. It is in the future only for pieces that were fetched and not
    used yet, and counts only while another process uses the folder.
    """

    def __init__(self, folder: Path) -> None:
        """Raises OSError if the folder cannot be written to."""
        self.path = folder
        self._storage = LocalStorage(folder)
        self._storage.make_folder()
        self._storage.make_folder(READERS)
        self._token, self._numbers = secrets.token_hex(8), itertools.count()
        self._lock = self._storage.lock(f"{READERS}/{self._token}")
        self._looked, self._others = -_LOOK_SECONDS, 0

    def pieces(self) -> Iterator[Piece]:
        """All pieces. What a killed process was writing is removed on the way, and folders without pieces."""
        readers = self._readers()
        for shard in self._storage.list():
            if not _SHARD.fullmatch(shard):
                continue
            names = self._storage.list(shard)
            if not names:
                self._storage.remove_folder(shard)
            for name in names:
                if match := _PIECE.fullmatch(name):
                    yield Piece(shard, int(match[1], 16), int(match[2], 16))
                elif (match := _UNFINISHED.fullmatch(name)) and match[1] not in readers:
                    self._storage.remove(f"{shard}/{name}")

    def has(self, piece: Piece) -> bool:
        with contextlib.suppress(CacheError):
            return self._storage.stat(piece.name) is not None
        return False

    def read(self, piece: Piece) -> memoryview | None:
        with contextlib.suppress(CacheError):  # it has vanished, or the disk fails: it is fetched again
            file = self._storage.open(piece.name)
            if file.size == piece.size + _CHECKSUM_BYTES:
                data = memoryview(file.read(0, file.size))
                if _checksum(piece, data[: piece.size]) == data[piece.size :]:
                    return data[: piece.size]
            self._storage.remove(piece.name)
        return None

    def write(self, piece: Piece, data: memoryview) -> None:
        try:
            self._write(piece, data)
        except FileNotFoundError:  # another process has just removed the folder, because nothing was in it
            self._write(piece, data)

    def _write(self, piece: Piece, data: memoryview) -> None:
        self._storage.make_folder(piece.shard)
        unfinished = f"{piece.shard}/.{self._token}.{next(self._numbers)}"
        try:
            # Not durable: a sync per piece would cost more than fetching again what a power failure takes.
            with self._storage.create(unfinished, durable=False) as file:
                file.write(data)
                file.write(_checksum(piece, data))
            self._storage.touch(unfinished, time.time() + CLAIM_SECONDS)
            self._storage.move(unfinished, piece.name)
        except OSError:
            self._storage.remove(unfinished)
            raise

    def claim(self, piece: Piece) -> None:
        self._set_time(piece, time.time() + CLAIM_SECONDS)

    def release(self, piece: Piece) -> None:
        self._set_time(piece, time.time())

    def remove(self, piece: Piece) -> bool:
        if self.others() and self._time(piece) > time.time():
            return False
        return self._storage.remove(piece.name)

    def oldest_first(self, pieces: list[Piece]) -> list[Piece]:
        return sorted(pieces, key=self._time)

    def others(self) -> int:
        now = time.monotonic()
        if now - self._looked > _LOOK_SECONDS:
            self._looked, self._others = now, len(self._readers() - {self._token})
        return self._others

    def close(self) -> None:
        self._lock.release()
        self._storage.remove(f"{READERS}/{self._token}")

    def _readers(self) -> set[str]:
        """The processes that use the folder. The system frees their locks when they end, however they end."""
        found = {self._token}
        for name in set(self._storage.list(READERS)) - found:
            try:
                if self._storage.is_locked(f"{READERS}/{name}"):
                    found.add(name)
                else:
                    self._storage.remove(f"{READERS}/{name}")
            except FileNotFoundError:
                continue
            except OSError:  # unknown: assume that it lives
                found.add(name)
        return found

    def _time(self, piece: Piece) -> float:
        with contextlib.suppress(CacheError):
            status = self._storage.stat(piece.name)
            return status.modified if status is not None else 0.0
        return 0.0

    def _set_time(self, piece: Piece, value: float) -> None:
        with contextlib.suppress(OSError):
            self._storage.touch(piece.name, value)


class PieceMemory:
    """Pieces in memory, for streaming without local copies."""

    def __init__(self) -> None:
        self._pieces: dict[Piece, memoryview] = {}

    def pieces(self) -> Iterator[Piece]:
        return iter(())

    def has(self, piece: Piece) -> bool:
        return piece in self._pieces

    def read(self, piece: Piece) -> memoryview | None:
        return self._pieces.get(piece)

    def write(self, piece: Piece, data: memoryview) -> None:
        self._pieces[piece] = data

    def claim(self, piece: Piece) -> None:
        pass

    def release(self, piece: Piece) -> None:
        pass

    def remove(self, piece: Piece) -> bool:
        self._pieces.pop(piece, None)
        return True

    def oldest_first(self, pieces: list[Piece]) -> list[Piece]:
        return pieces

    def others(self) -> int:
        return 0

    def close(self) -> None:
        self._pieces.clear()


def _checksum(piece: Piece, data: memoryview) -> bytes:
    """Of the name too: a file that was renamed is not taken for another piece."""
    digest = xxhash.xxh3_128(piece.name.encode())
    digest.update(data)
    return digest.digest()
