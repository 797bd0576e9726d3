"""The memory of source files: their stamps and facts when last read, so that unchanged files need not be opened.

One SQLite file per dataset, in a local folder. Everything in it can be read again from the sources: if the file is
lost, damaged or locked, files are read and hashed again, but nothing is encoded again.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import struct
import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from ..local_folders import memory_folder
from .source_files import Facts, FileRecord

_SCHEMA = 1
_TABLES = """
CREATE TABLE file (directory TEXT, name TEXT, record BLOB NOT NULL, PRIMARY KEY (directory, name)) WITHOUT ROWID;
CREATE TABLE made (source TEXT, field TEXT, content TEXT, transform TEXT, encoder TEXT, PRIMARY KEY (source, field))
  WITHOUT ROWID;
CREATE TABLE weights (path TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE run (name TEXT PRIMARY KEY, signature TEXT, generation TEXT, report TEXT) WITHOUT ROWID;
"""
_NAMES = 500  # per query; older versions of SQLite accept at most 999
_HEAD = struct.Struct("<32s16sIIB")
# From one folder to the next by the table's key, without reading the rows of their files.
_FOLDERS = """
WITH RECURSIVE folder(place) AS (
  SELECT min(directory) FROM file
  UNION ALL SELECT (SELECT min(directory) FROM file WHERE directory > place) FROM folder WHERE place IS NOT NULL
) SELECT place FROM folder WHERE place IS NOT NULL LIMIT ?
"""

Known = tuple[bytes, Facts]  # a file's stamp and facts when it was read


@dataclass(frozen=True)
class Origin:
    """What an entry was made of, so that a later run can report what changed."""

    content: str
    transform: str
    encoder: str


class SourceMemory:
    """What is remembered about one dataset's source files. Safe to use from several threads."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.problem = ""  # why nothing can be remembered
        self._lock = threading.RLock()
        self._db = self._open()

    def __enter__(self) -> SourceMemory:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def files(self, directory: str) -> dict[str, Known]:
        rows = self._read("SELECT name, record FROM file WHERE directory = ?", (directory,))
        known = {name: _unpack(name, record) for name, record in rows if isinstance(name, str)}
        return {name: value for name, value in known.items() if value is not None}

    def remember_files(self, rows: Iterable[FileRecord]) -> None:
        packed = [(directory, name, _pack(name, stamp, facts)) for directory, name, stamp, facts in rows]
        self._write("INSERT OR REPLACE INTO file VALUES (?, ?, ?)", packed)

    def forget_files(self, directory: str, names: Iterable[str]) -> None:
        self._write("DELETE FROM file WHERE directory = ? AND name = ?", [(directory, name) for name in names])

    def origins(self, sources: Collection[str]) -> dict[str, dict[str, Origin]]:
        """Source → field → what its entries were made of, for all known sources."""
        found: dict[str, dict[str, Origin]] = {}
        names = sorted(sources) if self._read("SELECT 1 FROM made LIMIT 1", ()) else []
        for start in range(0, len(names), _NAMES):
            some = tuple(names[start : start + _NAMES])
            marks = ",".join("?" * len(some))
            query = f"SELECT source, field, content, transform, encoder FROM made WHERE source IN ({marks})"
            for source, field, *origin in self._read(query, some):
                found.setdefault(source, {})[field] = Origin(*origin)
        return found

    def known_origins(self) -> set[str]:
        return {source for (source,) in self._read("SELECT DISTINCT source FROM made", ())}

    def remember_origins(self, rows: Iterable[tuple[str, str, Origin]]) -> None:
        values = [(source, field, made.content, made.transform, made.encoder) for source, field, made in rows]
        self._write("INSERT OR REPLACE INTO made VALUES (?, ?, ?, ?, ?)", values)

    def weights(self, path: str) -> Known | None:
        rows = self._read("SELECT record FROM weights WHERE path = ?", (path,))
        return _unpack(path, rows[0][0]) if rows else None

    def remember_weights(self, path: str, stamp: bytes, facts: Facts) -> None:
        self._write("INSERT OR REPLACE INTO weights VALUES (?, ?)", [(path, _pack(path, stamp, facts))])

    def run(self, name: str) -> tuple[str, str, dict[str, Any]] | None:
        """Signature, generation and report of the last published run with this name."""
        rows = self._read("SELECT signature, generation, report FROM run WHERE name = ?", (name,))
        row = rows[0] if rows else ()
        if not all(isinstance(value, str) for value in row):
            return None
        # The checksum is part of the text: a run recorded without one, or damaged since, counts as unknown.
        signature, generation, text = row or ("", "", "")
        report, _, checksum = text.rpartition("\n")
        intact = checksum == _run_checksum(name, signature, generation, report)
        return (signature, generation, json.loads(report)) if intact else None

    def remember_run(self, name: str, signature: str, generation: str, report: dict[str, Any]) -> None:
        text = json.dumps(report)
        row = (name, signature, generation, f"{text}\n{_run_checksum(name, signature, generation, text)}")
        self._write("INSERT OR REPLACE INTO run VALUES (?, ?, ?, ?)", [row])

    def move(self, dataset: str) -> None:
        """Become the memory of another dataset id."""
        if self.path is None:
            return
        with self._lock:
            target = memory_file(dataset)
            self._db.close()
            with contextlib.suppress(OSError):  # opened by another process on Windows: the next run hashes again
                os.replace(self.path, target)
            self.path = target
            self._db = self._open()

    def adopt(self, other: SourceMemory) -> None:
        """Copy the records of files that only the other memory has."""
        if other is self:
            return
        rows = other._read("SELECT directory, name, record FROM file", ())
        self._write("INSERT OR IGNORE INTO file VALUES (?, ?, ?)", rows)

    def _open(self) -> sqlite3.Connection:
        if self.path is None:
            return _create(":memory:")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return _create(str(self.path))
            except Exception as error:
                if _is_passing(error):
                    raise
                _remove(self.path)  # damaged: start over, everything in it can be read again
                return _create(str(self.path))
        except (OSError, sqlite3.Error) as error:
            self.problem = f"{self.path}: {error}; the next run hashes again"
            return _create(":memory:")

    def _read(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with self._lock, self._recovering():
            return self._db.execute(sql, values).fetchall()
        return []

    def _write(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> None:
        rows = list(rows)
        if not rows:
            return
        with self._lock, self._recovering(), self._db:
            self._db.executemany(sql, rows)

    @contextlib.contextmanager
    def _recovering(self) -> Iterator[None]:
        """Whatever goes wrong with the database, it counts as lost: SQLite raises almost anything on a damaged file."""
        try:
            yield
        except Exception as error:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            try:
                if self.path is None or _is_passing(error):
                    raise
                _remove(self.path)
                self._db = self._open()
            except Exception as lasting:
                self.problem = f"{self.path}: {lasting}; the next run hashes again"
                self._db = _create(":memory:")


def open_memory(dataset: str | None) -> SourceMemory:
    """The memory of a dataset by its id. None: one that is not kept on disk."""
    return SourceMemory(None if dataset is None else memory_file(dataset))


def is_remembered(dataset: str) -> bool:
    """Whether this machine has a memory of the dataset's sources."""
    return memory_file(dataset).is_file()


def memory_file(dataset: str) -> Path:
    """The file with the memory of a dataset, by its id."""
    return memory_folder() / "datasets" / f"{dataset}.sqlite"


def remembered_folders(dataset: str, limit: int) -> list[str]:
    """Source folders of a dataset, as remembered on this machine. Creates nothing, and does not wait for locks."""
    path = memory_file(dataset)
    if not path.is_file():
        return []
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0.1)
        ) as database:
            return [name for (name,) in database.execute(_FOLDERS, (limit,)) if isinstance(name, str)]
    except Exception:  # locked or damaged: it is not needed
        return []


def _create(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=10, check_same_thread=False)
    try:
        db.execute("PRAGMA synchronous = OFF")  # a power cut may cost the state; that costs hashing
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version != _SCHEMA:
            if version or db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise sqlite3.DatabaseError(f"schema {version}, expected {_SCHEMA}")
            db.executescript(f"BEGIN;{_TABLES}PRAGMA user_version = {_SCHEMA};COMMIT;")
    except BaseException:
        db.close()
        raise
    return db


def _is_passing(error: Exception) -> bool:
    """Whether the database may be intact, but cannot be used now."""
    if isinstance(error, (MemoryError, sqlite3.ProgrammingError)):  # such as a memory that was closed
        return True
    words = ("locked", "readonly", "unable to open", "is full", "disk I/O")
    return isinstance(error, (sqlite3.OperationalError, OSError)) and any(word in str(error) for word in words)


def _remove(path: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _pack(name: str, stamp: bytes, facts: Facts) -> bytes:
    head = _HEAD.pack(stamp, facts.content, facts.width, facts.height, facts.alpha | bool(facts.content) << 1)
    text = "-" if facts.text is None else "+" + facts.text
    body = head + f"{facts.format}\0{facts.error}\0{text}".encode("utf-8", "surrogatepass")
    return body + _checksum(name, body)


def _unpack(name: str, record: Any) -> Known | None:
    """None if the record is damaged: SQLite has no checksums, and a wrong caption must not be encoded."""
    if not isinstance(record, bytes) or len(record) < _HEAD.size + 8 or _checksum(name, record[:-8]) != record[-8:]:
        return None
    stamp, content, width, height, flags = _HEAD.unpack_from(record)
    kind, error, text = record[_HEAD.size : -8].decode("utf-8", "surrogatepass").split("\0", 2)
    content = content if flags & 2 else b""
    return stamp, Facts(content, width, height, bool(flags & 1), kind, None if text == "-" else text[1:], error)


def _run_checksum(*values: str) -> str:
    return xxhash.xxh3_64_hexdigest("\0".join(values).encode("utf-8", "surrogatepass"))


def _checksum(name: str, body: bytes) -> bytes:
    return xxhash.xxh3_64_digest(name.encode("utf-8", "surrogatepass") + b"\0" + body)
