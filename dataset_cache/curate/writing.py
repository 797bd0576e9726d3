"""Writing captions and choices: each file in one atomic step, only if it is as it was shown, and undone as a batch."""

from __future__ import annotations

import contextlib
import errno
import stat
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import CacheError, Unusable
from ...quantity import plural
from ..format import replace_file
from ..sources import CHOICES, MOST_REPEATS, SIDECARS, change_choices, changed_choices, decode_text
from .caption_edits import CaptionChange
from .caption_file import bytes_of, read_file, stamp_of_bytes, text_of
from .history import Batch, FileEdit, History, editing
from .source_folder import FolderView

_THREADS = 8  # most of the time is spent waiting for the disk


@dataclass(frozen=True, slots=True)
class EditConflict:
    """A file that is not as it was shown. Nothing was written to it."""

    name: str
    before: str  # as shown
    found: str  # as it is now
    after: str  # what was to be written
    stamp: str  # of the file now


@dataclass(frozen=True)
class EditResult:
    """What happened to a batch: names of images whose caption or choice changed, conflicts, and refusals by name."""

    title: str = ""
    changed: list[str] = field(default_factory=list)
    conflicts: list[EditConflict] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def apply_changes(view: FolderView, changes: Iterable[CaptionChange], title: str = "") -> EditResult:
    """Write captions. A file that changed since it was shown is a conflict; others of the batch are written."""
    changes = list(changes)
    with editing(view.root):
        writes = _Writes(view.root, title or plural(len(changes), "caption"))
        for change in changes:
            try:
                _add_caption(writes, view, change)
            except CacheError as error:
                writes.done.refused[change.name] = str(error)
        return writes.write()


def choose_images(
    view: FolderView, names: Iterable[str], *, excluded: bool | None = None, repeats: int | None = None
) -> EditResult:
    """Exclude or include images, or repeat them, in the streamcache.json of their folders. None: as it is."""
    if repeats is not None and not 1 <= repeats <= MOST_REPEATS:
        raise CacheError(f"repeats = {repeats}: expected 1 to {MOST_REPEATS:,}")
    folders: dict[str, list[str]] = {}
    missing: dict[str, str] = {}
    for given in dict.fromkeys(names):
        try:
            folder, slash, name = view.find(given).name.rpartition("/")
        except CacheError as error:
            missing[given] = str(error)
        else:
            folders.setdefault(folder + slash, []).append(name)
    with editing(view.root):
        writes = _Writes(view.root, _choice_title(excluded, repeats, sum(map(len, folders.values()))))
        writes.done.refused.update(missing)
        for folder, found in folders.items():
            _add_choices(writes, folder, found, excluded, repeats)
        return writes.write()


def undo_edit(root: Path) -> EditResult | None:
    """Take back the last batch, None if there is none. Files that changed since are conflicts, and stay."""
    with editing(root):
        history = History(root)
        batch = history.last()
        if batch is None:
            return None
        done, unwritten = _revert(root, batch)
        if not unwritten:  # else the former texts are kept, and the next undo tries again
            history.forget(batch.path)
        return done


def last_edit(root: Path) -> str:
    """The title of the batch that `undo_edit` would take back; "" if there is none."""
    return History(root).last_title()


class _Writes:
    """Files to write, collected before the first one is touched."""

    def __init__(self, root: Path, title: str) -> None:
        self.root, self.title, self.done = root, title, EditResult(title)
        self._files: dict[str, tuple[list[str], bytes | None, bytes | None]] = {}  # file → images, before, after

    def add(self, file: str, names: Iterable[str], before: bytes | None, after: bytes | None) -> None:
        if before != after:
            self._files[file] = (list(names), before, after)

    def planned(self, file: str) -> tuple[list[str], bytes | None] | None:
        """The images and the new bytes of a file that is in the batch already."""
        return (self._files[file][0], self._files[file][2]) if file in self._files else None

    def write(self) -> EditResult:
        if not self._files:
            return self.done
        edits = [FileEdit(file, tuple(n), before, stamp_of_bytes(a)) for file, (n, before, a) in self._files.items()]
        history = History(self.root)
        record = history.record(self.title, edits)
        # What was written so far when this is interrupted can be undone.
        problems = _put_all({self.root / file: after for file, (_, _, after) in self._files.items()})
        for file, (names, _, _) in self._files.items():
            problem = problems.get(self.root / file)
            if problem:
                self.done.refused.update(dict.fromkeys(names, problem))
            else:
                self.done.changed.extend(names)
        if not self.done.changed:
            history.forget(record)
        return self.done


def _add_caption(writes: _Writes, view: FolderView, change: CaptionChange) -> None:
    image = view.find(change.name)
    caption = image.caption
    if caption.locked:
        raise CacheError(caption.locked)
    path = view.root / caption.file
    before = read_file(path)
    after = bytes_of(path.name, change.after, before)
    found = stamp_of_bytes(before)
    planned = writes.planned(caption.file)
    if planned is not None and planned[1] == after:  # two images share the caption file
        planned[0].append(image.name)
    elif planned is not None or found != change.stamp or _is_overridden(path):
        now = text_of(path.name, before)
        writes.done.conflicts.append(EditConflict(image.name, change.before, now, change.after, found))
    else:
        writes.add(caption.file, [image.name], before, after)


def _is_overridden(path: Path) -> bool:
    """Whether another caption file that comes first has appeared, or one where there was none."""
    others = [suffix for suffix in SIDECARS if suffix != path.suffix.lower()]
    if path.suffix.lower() in SIDECARS and path.exists():
        others = list(SIDECARS[: SIDECARS.index(path.suffix.lower())])
    return any(path.with_suffix(suffix).exists() for suffix in others)


def _add_choices(
    writes: _Writes, folder: str, names: Sequence[str], excluded: bool | None, repeats: int | None
) -> None:
    path = writes.root / folder / CHOICES
    try:
        before = read_file(path)
        text = decode_text(CHOICES, before) if before is not None else None
        changes = changed_choices(text, names, excluded, repeats)
        after = change_choices(text, changes).encode() or None
        if after is not None:
            decode_text(CHOICES, after)  # refuses one that is too long
    except Unusable as error:
        reason = f"{path}: {error}. Correct the file, or remove it to use all images"
        writes.done.refused.update((folder + name, reason) for name in names)
    else:
        if changes:
            writes.add(folder + CHOICES, [folder + name for name in changes], before, after)


def _revert(root: Path, batch: Batch) -> tuple[EditResult, Mapping[Path, str]]:
    """Take a batch back. Also returns the files that could not be written, and why."""
    done = EditResult(batch.title)
    pending: dict[Path, bytes | None] = {}
    for edit in batch.edits:
        path = root / edit.file
        try:
            found = read_file(path)
        except Unusable as error:
            done.refused.update(dict.fromkeys(edit.names, str(error)))
            continue
        stamp = stamp_of_bytes(found)
        if stamp == edit.stamp:
            pending[path] = edit.before
        elif found != edit.before:  # else the batch, or an interrupted undo, left it as it was
            before, now = text_of(path.name, edit.before), text_of(path.name, found)
            done.conflicts.extend(EditConflict(name, before, now, before, stamp) for name in edit.names)
    problems = _put_all(pending)
    for edit in batch.edits:
        path = root / edit.file
        if path in problems:
            done.refused.update(dict.fromkeys(edit.names, problems[path]))
        elif path in pending:
            done.changed.extend(edit.names)
    return done, problems


def _put_all(files: Mapping[Path, bytes | None]) -> dict[Path, str]:
    """Put bytes at these paths, None removes a file. Returns what went wrong, by path."""

    def put(path: Path) -> tuple[Path, str]:
        try:
            _put(path, files[path])
        except OSError as error:
            return path, f"{path} cannot be written: {error.strerror or error}"
        return path, ""

    if len(files) < _THREADS:
        return {path: problem for path, problem in map(put, files) if problem}
    with ThreadPoolExecutor(_THREADS, "streamcache-edit") as pool:
        return {path: problem for path, problem in pool.map(put, files) if problem}


def _put(path: Path, data: bytes | None) -> None:
    mode = path.stat().st_mode if path.exists() else None
    if mode is not None and not mode & stat.S_IWUSR:  # a rename would replace it all the same, except on Windows
        raise PermissionError(errno.EACCES, "the file is read-only")
    if data is None:
        path.unlink(missing_ok=True)
        return
    replace_file(path, data)
    if mode is not None:
        with contextlib.suppress(OSError):
            path.chmod(stat.S_IMODE(mode))


def _choice_title(excluded: bool | None, repeats: int | None, count: int) -> str:
    parts = [] if excluded is None else ["Exclude" if excluded else "Include"]
    parts += [] if repeats is None else [f"{repeats}× repeat"]
    return f"{', '.join(parts) or 'Choose'}: {plural(count, 'image')}"
