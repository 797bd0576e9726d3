"""Trash: what was deleted on a page lies below its root in `.trash`, until it is restored or removed for good."""

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...dataset_cache import is_link, is_regular, refuse_link
from ...lora_train import check_run_name
from ..library import contained, path_to_create
from .moves import move_folder, remove_empty_parents
from .refusals import Refused
from .untrusted import as_dict, cut_text

FOLDER = ".trash"
CACHE, RUN = "cache", "run"
_CONTENT, _NOTE = "content", "deleted.json"
_ID = re.compile(r"[0-9a-f]{32}")
_MOST = 500  # rows
_MAX_NOTE = 1 << 16


@dataclass(frozen=True)
class Root:
    """A folder that has a trash, and what lies in it: caches or runs."""

    path: Path
    kind: str = CACHE


@dataclass(frozen=True)
class TrashRow:
    """Something deleted. `name` is where it was below its root."""

    id: str
    kind: str
    name: str
    bytes: int
    deleted: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def throw_away(root: Root, name: str, folder: Path, refuse_if_in_use: Callable[[], Any]) -> str:
    """Move a folder that nobody uses to the trash of its root. Returns the id under which it lies there."""
    refuse_link(root.path / FOLDER)
    refuse_if_in_use()
    number = secrets.token_hex(16)
    place = root.path / FOLDER / number
    place.mkdir(parents=True)
    note = {"name": name, "bytes": folder_bytes(folder), "deleted": time.time()}
    try:
        (place / _NOTE).write_text(json.dumps(note), encoding="utf-8")
        refuse_if_in_use()  # again: measuring a large folder takes a while, in which somebody may have opened it
        move_folder(folder, place / _CONTENT)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    remove_empty_parents(folder, root.path)
    return number


def list_trash(roots: Sequence[Root]) -> list[TrashRow]:
    """What lies in the trash, the latest first."""
    rows = [_row(root, place) for root in roots for place in _places(root)]
    return sorted(rows, key=lambda row: -row.deleted)[:_MOST]


def restore(number: str, roots: Sequence[Root]) -> TrashRow:
    """Put something back where it was."""
    root, place = _find(number, roots)
    row = _row(root, place)
    others = [other.path for other in roots if other.kind == root.kind]
    target = _run_place(row.name, root.path) if root.kind == RUN else path_to_create(row.name, [root.path, *others])
    move_folder(place / _CONTENT, target, root.path)
    shutil.rmtree(place, ignore_errors=True)
    return row


def remove_for_good(numbers: Sequence[str], roots: Sequence[Root]) -> int:
    """Remove these from the disk. Returns how many bytes that were."""
    places = [_find(number, roots)[1] for number in dict.fromkeys(numbers)]
    freed = 0
    for place in places:
        freed += folder_bytes(place / _CONTENT)
        try:
            shutil.rmtree(place)
        except OSError as error:
            raise Refused(
                f"a file cannot be removed: {error.strerror or error}; close whatever has it open", 409
            ) from error
    return freed


def folder_bytes(folder: Path) -> int:
    """The sizes of all files below a folder; links are not followed."""
    found = 0
    for above, _, names in os.walk(folder):
        for name in names:
            try:
                found += os.lstat(os.path.join(above, name)).st_size
            except OSError:  # removed meanwhile
                continue
    return found


def _run_place(name: str, root: Path) -> Path:
    """Where a run goes back to. What was a run's name may be none for a cache."""
    check_run_name(name)
    target = contained(root, [name], name)
    if os.path.lexists(target):
        raise Refused(f"there is another run {name}; rename or delete it first", 409)
    return target


def _places(root: Root) -> Iterator[Path]:
    if is_link(root.path / FOLDER):
        return
    try:
        names = sorted(os.listdir(root.path / FOLDER))
    except OSError:
        return
    yield from (root.path / FOLDER / name for name in names if _lies_in(root, name))


def _find(number: str, roots: Sequence[Root]) -> tuple[Root, Path]:
    for root in roots:
        if _lies_in(root, number):
            return root, root.path / FOLDER / number
    raise Refused("this is no longer in the trash", 404)


def _lies_in(root: Root, number: str) -> bool:
    """An id is a name that this file gave, so it leads nowhere else."""
    if not _ID.fullmatch(number) or is_link(root.path / FOLDER):
        return False
    content = root.path / FOLDER / number / _CONTENT
    return not is_link(content.parent) and content.is_dir() and not is_link(content)


def _row(root: Root, place: Path) -> TrashRow:
    note = _read_note(place / _NOTE)
    name, size, deleted = note.get("name"), note.get("bytes"), note.get("deleted")
    return TrashRow(
        id=place.name,
        kind=root.kind,
        name=cut_text(name) if isinstance(name, str) and name else f"restored-{place.name[:8]}",
        bytes=size if type(size) is int and 0 <= size < 1 << 53 else 0,
        deleted=float(deleted) if type(deleted) in (int, float) and 0 <= deleted < 1e11 else 0.0,
    )


def _read_note(path: Path) -> dict[str, Any]:
    try:
        if not is_regular(path) or path.stat().st_size > _MAX_NOTE:
            return {}
        return as_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return {}
