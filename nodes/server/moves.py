"""Moving caches and runs: rename, move to the trash, restore, remove for good. Nothing that is in use is moved.

Deleted folders stay in `.trash` below their root until they are restored or removed for good.
"""

import gc
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...dataset_cache import CacheBusy, PublishLock, holders, is_link, is_regular, refuse_link
from ...lora_train import check_run_name
from ..library import close_idle, contained, forget_result, parse_name, path_to_create, path_to_open
from ..outside import TRASH_ID, Refused, as_count, as_dict, as_time, cut_text
from .cache_view import close_views

TRASH = ".trash"
CACHE, RUN = "cache", "run"
_CONTENT, _NOTE = "content", "deleted.json"
_ID = re.compile(TRASH_ID)
_MAX_ROWS = 500
_MAX_NOTE = 1 << 16

Move = Callable[[Path], None]  # moves the folder that is held to a new place


@dataclass(frozen=True)
class Root:
    """A folder with a trash; it contains caches or runs."""

    path: Path
    kind: str = CACHE


@dataclass(frozen=True)
class TrashRow:
    """A deleted cache or run. `name` is its former place below its root."""

    id: str
    kind: str
    name: str
    bytes: int
    deleted: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def rename(name: str, to: str, roots: Sequence[Path]) -> Path:
    """Rename a cache within its root."""
    folder = path_to_open(name, roots)
    root = root_of(name, folder, roots)
    target = path_to_create(to, [root, *roots])
    with unused(folder) as move:
        move_folder(folder, target, root, move)
    remove_empty_parents(folder, root)
    forget_result(folder)
    return target


def root_of(name: str, folder: Path, roots: Sequence[Path]) -> Path:
    above = folder.parents[len(parse_name(name)) - 1]
    return next(root for root in roots if root == above)


def close_unused(folder: Path) -> None:
    """Close the files of a cache that this process has open but does not use."""
    close_idle(folder)
    close_views(folder)
    if holders(folder):
        gc.collect()  # closed objects may still wait for it


@contextmanager
def unused(folder: Path) -> Iterator[Move]:
    """Inside the `with`, no process writes to the cache; what it gives moves the cache. Refused while it is in use."""
    if is_link(folder):
        raise Refused(f"{folder.name} is a link; move or remove the folder that it points to", 409)
    close_unused(folder)
    lock = PublishLock(folder)  # raises CacheBusy while another process writes
    try:
        found = holders(folder)
        if found:
            raise CacheBusy(f"{folder.name} is in use: {found[0]} reads it; try again when that is done")
        yield lock.move
    finally:
        lock.release()


def move_folder(folder: Path, target: Path, root: Path | None = None, move: Move | None = None) -> None:
    """Move a folder and create the parents of `target`; if that fails, remove those that are empty below `root`."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if move is not None:
            move(target)
        else:
            os.rename(folder, target)
    except OSError as error:
        if root is not None:
            remove_empty_parents(target, root)
        raise Refused(
            f"{folder.name} cannot be moved: {error.strerror or error}; close the programs that have its files open",
            409,
        ) from error


def remove_empty_parents(folder: Path, root: Path) -> None:
    """Remove the empty folders between a root and a folder that was moved away, innermost first."""
    for above in folder.parents:
        if above == root or root not in above.parents or is_link(above):
            return
        try:
            above.rmdir()
        except OSError:  # not empty
            return


def move_to_trash(root: Root, name: str, folder: Path, hold: Callable[[], AbstractContextManager[Move]]) -> str:
    """Move a folder to the trash of its root. `hold` refuses if it is in use. Returns its id in the trash."""
    refuse_link(root.path / TRASH)
    with hold():  # refuse before a large folder is measured, which takes a while
        pass
    place = root.path / TRASH / secrets.token_hex(16)
    note = {"name": name, "bytes": folder_bytes(folder), "deleted": time.time()}
    with hold() as move:
        place.mkdir(parents=True)
        try:
            (place / _NOTE).write_text(json.dumps(note), encoding="utf-8")
            move_folder(folder, place / _CONTENT, move=move)
        except BaseException:
            _remove_place(place)
            raise
    remove_empty_parents(folder, root.path)
    return place.name


def list_trash(roots: Sequence[Root]) -> list[TrashRow]:
    """The contents of the trash, latest first."""
    rows = [_row(root, place) for root in roots for place in _places(root)]
    return sorted(rows, key=lambda row: -row.deleted)[:_MAX_ROWS]


def restore(number: str, roots: Sequence[Root]) -> TrashRow:
    """Move a folder from the trash back to its place."""
    root, place = _find(number, roots)
    row = _row(root, place)
    others = [other.path for other in roots if other.kind == root.kind]
    target = _run_place(row.name, root.path) if root.kind == RUN else path_to_create(row.name, [root.path, *others])
    move_folder(place / _CONTENT, target, root.path)
    _remove_place(place)
    return row


def remove_for_good(numbers: Sequence[str], roots: Sequence[Root]) -> int:
    """Delete these folders. Returns the number of bytes freed."""
    places = [_find(number, roots)[1] for number in dict.fromkeys(numbers)]
    freed = 0
    for place in places:
        freed += folder_bytes(place / _CONTENT)
        try:
            shutil.rmtree(place)
        except OSError as error:
            raise Refused(
                f"a file cannot be removed: {error.strerror or error}; close the programs that have it open", 409
            ) from error
    return freed


def folder_bytes(folder: Path) -> int:
    """The total size of all files below a folder; links are not followed."""
    found = 0
    for above, _, names in os.walk(folder):
        for name in names:
            try:
                found += os.lstat(os.path.join(above, name)).st_size
            except OSError:  # removed meanwhile
                continue
    return found


def _remove_place(place: Path) -> None:
    """Remove a place in the trash, unless a folder is in it."""
    if not os.path.lexists(place / _CONTENT):
        with suppress(OSError):
            (place / _NOTE).unlink(missing_ok=True)
            place.rmdir()


def _run_place(name: str, root: Path) -> Path:
    """Where a run is restored to. Names of runs follow other rules than names of caches."""
    check_run_name(name)
    target = contained(root, [name], name)
    if os.path.lexists(target):
        raise Refused(f"another run named {name} exists; delete it first", 409)
    return target


def _places(root: Root) -> Iterator[Path]:
    if is_link(root.path / TRASH):
        return
    try:
        names = sorted(os.listdir(root.path / TRASH))
    except OSError:
        return
    yield from (root.path / TRASH / name for name in names if _is_in_trash(root, name))


def _find(number: str, roots: Sequence[Root]) -> tuple[Root, Path]:
    for root in roots:
        if _is_in_trash(root, number):
            return root, root.path / TRASH / number
    raise Refused("this is no longer in the trash", 404)


def _is_in_trash(root: Root, number: str) -> bool:
    """Ids are random names given by `move_to_trash`; anything else could point elsewhere and is refused."""
    if not _ID.fullmatch(number) or is_link(root.path / TRASH):
        return False
    content = root.path / TRASH / number / _CONTENT
    return not is_link(content.parent) and content.is_dir() and not is_link(content)


def _row(root: Root, place: Path) -> TrashRow:
    note = _read_note(place / _NOTE)
    name = note.get("name")
    return TrashRow(
        id=place.name,
        kind=root.kind,
        name=cut_text(name) if isinstance(name, str) and name else f"restored-{place.name[:8]}",
        bytes=as_count(note.get("bytes")),
        deleted=as_time(note.get("deleted")),
    )


def _read_note(path: Path) -> dict[str, Any]:
    try:
        if not is_regular(path) or path.stat().st_size > _MAX_NOTE:
            return {}
        return as_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return {}
