"""Folders of images that pages look at: read once, and again when something in them changed."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from ...dataset_cache import CacheBusy, CacheError, curate
from ..library import contained

MAX_FOLDERS = 4
MAX_IMAGES = 300_000  # of all folders in memory; the last one is always kept
IDLE_SECONDS = 900.0
PATIENCE_SECONDS = 30.0
LAST = "last"
LARGE = 2000  # images; a smaller folder is read at once
_MAX_RESULTS = 8  # lists and charts that are kept per state
_T = TypeVar("_T")
Progress = Callable[[int, int], None]


class FolderNow:
    """A folder when it was read. `state` is equal as long as nothing in it changed."""

    def __init__(self, view: curate.FolderView) -> None:
        self.view = view
        self.state = _digest((view.problems, *map(_facts, view.images))) if view.whole else secrets.token_hex(16)
        self._lock = threading.Lock()
        self._results: OrderedDict[Hashable, Any] = OrderedDict()
        self._links: dict[str, str] = {}  # subfolder → why it is not edited here

    @property
    def root(self) -> Path:
        return self.view.root

    @cached_property
    def pictures(self) -> str:
        """Equal as long as the image files are the same, whatever happens to captions and choices."""
        return _digest((image.name, image.stamp) for image in self.view.images)

    def linked(self, names: Iterable[str]) -> dict[str, str]:
        """The images in folders that are links to places outside this one, and why they are not edited here."""
        return {name: reason for name in names if (reason := self._leads_out(name.rpartition("/")[0]))}

    def _leads_out(self, folder: str) -> str:
        if folder not in self._links:
            try:
                contained(self.root, folder.split("/") if folder else [], folder)
                self._links[folder] = ""
            except CacheError as error:
                self._links[folder] = str(error)
        return self._links[folder]

    def result(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """What `make` returns, which is kept until the folder changes; the least recently used are dropped."""
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
                return self._results[key]
        made = make()
        with self._lock:
            self._results[key] = made
            while len(self._results) > _MAX_RESULTS:
                self._results.popitem(last=False)
        return made


class _OpenFolder:
    """A folder in memory, with the two states that pages may have: the last one, and the one before an edit."""

    def __init__(self, path: Path) -> None:
        self._folder = curate.SourceFolder(path)
        self._lock = threading.Lock()
        self._known: list[FolderNow] = []
        self._first: FolderNow | None = None  # until it is read
        self.used = time.monotonic()

    @property
    def images(self) -> int:
        return sum(len(now.view.images) for now in self._known)

    def forget_first(self) -> None:
        self._first = None

    def look(self, state: str) -> FolderNow:
        self.used = time.monotonic()
        if not self._known and self._first is None:
            view = curate.look_first(self._folder.source)
            self._first = FolderNow(view) if len(view.images) > LARGE else None
        first = self._first
        return self.read(state) if self._known or first is None else first

    def read(self, state: str, progress: Progress = lambda done, total: None) -> FolderNow:
        self.used = time.monotonic()
        known = next((now for now in self._known if state in (now.state, LAST)), None)
        if known is not None:
            return known
        if not self._lock.acquire(timeout=PATIENCE_SECONDS):
            raise CacheBusy(f"{self._folder.root.name}: its images are being read, which takes long if there are many")
        try:
            view = self._folder.read(progress)
            for now in self._known:
                if now.view is view:
                    return now
            fresh = FolderNow(view)
            same = next((now for now in self._known if now.state == fresh.state), None)
            if same is not None:  # files so new that they were read again
                return same
            self._known, self._first = [fresh, *self._known[:1]], None
            return fresh
        finally:
            self._lock.release()


_open: OrderedDict[str, _OpenFolder] = OrderedDict()
_lock = threading.Lock()


def look_at(path: Path, state: str = "", progress: Progress = lambda done, total: None) -> FolderNow:
    """What is in a folder now; or, with a state that a page has and that is still in memory, what was in it then.

    The second does not look at the disk: a page that scrolls through 100,000 images does not wait for it. LAST stands
    for the last state in memory, for edits: they look at the files that they write.
    """
    return _look(path, lambda folder: folder.read(state, progress))


def look_first(path: Path, state: str = "") -> FolderNow:
    """As `look_at`, but a large folder that was not read yet is not waited for: its view is not `whole`."""
    return _look(path, lambda folder: folder.look(state))


def forget_first(path: Path) -> None:
    """Call this after an edit: a large folder that is still being read is listed again by the next `look_first`."""
    with _lock:
        folder = _open.get(os.path.realpath(path))
    if folder is not None:
        folder.forget_first()


def _look(path: Path, look: Callable[[_OpenFolder], FolderNow]) -> FolderNow:
    key = os.path.realpath(path)
    with _lock:
        folder = _open.setdefault(key, _OpenFolder(path))
        _open.move_to_end(key)
    now = look(folder)
    with _lock:
        _drop_least_used()
    return now


def _drop_least_used() -> None:
    latest = next(reversed(_open), "")
    for key, folder in list(_open.items()):
        idle = time.monotonic() - folder.used > IDLE_SECONDS
        crowded = len(_open) > MAX_FOLDERS or sum(each.images for each in _open.values()) > MAX_IMAGES
        if key != latest and (idle or crowded):
            del _open[key]


def _facts(image: curate.FolderImage) -> tuple[object, ...]:
    caption = image.caption
    own = (image.name, image.stamp, image.width, image.excluded, image.repeats, image.problem)
    return (*own, image.mask, image.mask_stamp, caption.stamp, image.lines, caption.locked, caption.problem)


def _digest(parts: Any) -> str:
    whole = xxhash.xxh3_128()
    for part in parts:
        whole.update(repr(part).encode("utf-8", "surrogatepass"))
    return whole.hexdigest()
