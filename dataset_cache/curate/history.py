"""The edits of a folder, so that they can be undone: one file per batch in the local state, written before the edits.

A batch has the former bytes of each file and the stamp of the new ones. So undo is right after a restart, after a kill
in the middle of a batch, and after a kill in the middle of undo: a file that is neither as it was nor as the batch left
it belongs to another program, and stays.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import CacheBusy, CacheError
from ..format import replace_file, take_lock
from ..local_folders import memory_folder
from .source_folder import folder_id, protection_of

MOST_BATCHES = 100
MOST_BYTES = 256 << 20  # on disk; the last batch is always kept
_PATIENCE_SECONDS = 30.0
_DAMAGED = (OSError, ValueError, TypeError, KeyError, zlib.error)


@dataclass(frozen=True, slots=True)
class FileEdit:
    """One file of a batch; None for a missing file. `names` are the images that it belongs to."""

    file: str  # below the folder
    names: tuple[str, ...]
    before: bytes | None
    stamp: str  # of the bytes after the edit; "" if the edit removed the file


@dataclass(frozen=True, slots=True)
class Batch:
    """Edits that are undone together."""

    path: Path
    title: str
    made_at: float
    edits: tuple[FileEdit, ...]


@contextlib.contextmanager
def editing(root: Path) -> Iterator[None]:
    """One process at a time edits the files of a folder. Refused if the folder is protected."""
    reason = protection_of(root)
    if reason:
        raise CacheError(f"{root}: {reason}")
    # Not in the local state: ComfyUI and the command line have different ones. Not in the folder: it may be read-only.
    user = os.getuid() if hasattr(os, "getuid") else "user"
    path = Path(tempfile.gettempdir()) / f"streamcache-{user}-{folder_id(root)}.lock"
    try:
        lock = take_lock(path, _PATIENCE_SECONDS)
    except TimeoutError:
        raise CacheBusy(f"{root}: another process is editing captions here; try again") from None
    try:
        yield
    finally:
        lock.release()


class History:
    """The batches of one folder. Use it inside `editing`."""

    def __init__(self, root: Path) -> None:
        self._root, self._folder = root, memory_folder() / "edits" / folder_id(root)

    def record(self, title: str, edits: Sequence[FileEdit]) -> Path:
        """Keep a batch durably. Call it before the files change."""
        rows = [[e.file, e.names, _text(e.before), e.stamp] for e in edits]
        facts = {"root": str(self._root), "title": title, "made_at": time.time(), "edits": rows}
        before = self._files()
        path = self._folder / f"{_number(before[-1]) + 1 if before else 1:08d}.batch"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, zlib.compress(json.dumps(facts).encode(), 1))
        except OSError as error:
            why = f"cannot be written ({error.strerror}), and the edit could not be undone"
            raise CacheError(f"{path}: {why}. Nothing was changed") from error
        self._drop_oldest([*before, path])
        return path

    def last(self) -> Batch | None:
        """The batch that undo takes back."""
        for path in reversed(self._files()):
            with contextlib.suppress(*_DAMAGED):
                facts = _read(path)
                edits = tuple(FileEdit(f, tuple(names), _bytes(b), stamp) for f, names, b, stamp in facts["edits"])
                return Batch(path, facts["title"], facts["made_at"], edits)
        return None

    def last_title(self) -> str:
        """The title of the batch that undo takes back; "" if there is none."""
        for path in reversed(self._files()):
            with contextlib.suppress(*_DAMAGED):
                return _title(path, path.stat().st_mtime_ns)
        return ""

    def forget(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()

    def _files(self) -> list[Path]:
        return sorted(p for p in self._folder.glob("*.batch") if p.stem.isascii() and p.stem.isdigit())

    def _drop_oldest(self, files: list[Path]) -> None:
        total = 0
        for number, path in enumerate(reversed(files)):
            with contextlib.suppress(OSError):  # another process removed it
                total += path.stat().st_size
                if number and (number >= MOST_BATCHES or total > MOST_BYTES):
                    path.unlink()


def _read(path: Path) -> dict[str, Any]:
    return json.loads(zlib.decompress(path.read_bytes()))


@lru_cache(64)
def _title(path: Path, modified: int) -> str:
    """Pages ask for it again and again, and a batch may have 100,000 captions."""
    return _read(path)["title"]


def _number(path: Path) -> int:
    return int(path.stem)


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
