"""Views: generations that pages look at, open for a moment. A view takes no lease: whoever only looks is no reader and
leaves no trace; if what it shows is removed meanwhile, it says so."""

import threading
import time
from functools import cached_property
from pathlib import Path

from ...dataset_cache.current import Current, open_current
from ...dataset_cache.errors import CacheError
from ...dataset_cache.generation import open_index
from ...dataset_cache.index import Index
from ...dataset_cache.manifest import NAME, Manifest, manifest_stamp, read_manifest
from ...dataset_cache.overview import Overview, overview_of
from ...dataset_cache.reader import Cache
from .bucket_names import bucket_names
from .refusals import Refused

IDLE_SECONDS = 10.0
_MOST = 4
_ATTEMPTS = 5


class View:
    """One generation, opened from its metadata."""

    def __init__(self, folder: Path, manifest: Manifest, index: Index) -> None:
        self.folder, self.manifest, self.index = folder, manifest, index
        self.cache = Cache(folder, manifest, index, lease=None)
        self.set_names = list(manifest.sets)
        self.matches: dict = {}  # (search, bucket) → the samples that match

    @cached_property
    def bucket_names(self) -> list[str]:
        return bucket_names(self.index.arrays.samples, self.manifest.buckets)

    @cached_property
    def current(self) -> Current:
        """The generation checked through and through, which takes a moment for a large one."""
        return open_current(self.folder, self.manifest)

    @cached_property
    def overview(self) -> Overview:
        return overview_of(self.current)

    @cached_property
    def lowered(self) -> list[str]:
        """All captions and sources, in lower case."""
        return [self.index.string(number).lower() for number in range(len(self.index.arrays.string_ends))]


_lock = threading.Lock()
_open: dict[tuple[str, str], tuple[View, float]] = {}
_timer: threading.Timer | None = None


def view(folder: Path, generation: str = "") -> View:
    """A generation of the cache: one that was looked at a moment ago, or the published one."""
    with _lock:
        found = _open.get((str(folder), generation)) if (folder / NAME).exists() else None
    shown = found[0] if found else _open_published(folder, generation)
    with _lock:
        key = (str(folder), shown.manifest.generation)
        shown = _open[key][0] if key in _open else shown  # another thread may have been quicker
        _open.pop(key, None)
        while len(_open) >= _MOST:
            del _open[next(iter(_open))]
        _open[key] = (shown, time.monotonic())
        _start_timer()
    return shown


def close(folder: Path) -> None:
    """Let go of a cache's files, which on Windows could not be moved or removed otherwise."""
    with _lock:
        for key in [key for key in _open if key[0] == str(folder)]:
            del _open[key]


def _open_published(folder: Path, generation: str) -> View:
    for _ in range(_ATTEMPTS):
        stamp = manifest_stamp(folder)
        manifest = read_manifest(folder)
        if manifest is None:
            raise Refused(f"{folder.name}: was removed, or was never finished", 404)
        if generation and manifest.generation != generation:
            raise Refused(f"{folder.name} was saved again since this page was loaded; load it again", 409)
        try:
            return View(folder, manifest, open_index(folder, manifest))
        except CacheError:
            if manifest_stamp(folder) == stamp:
                raise
    raise Refused(f"{folder.name} is being saved at this moment; try again", 409)


def _start_timer() -> None:
    global _timer
    if _timer is None:
        _timer = threading.Timer(IDLE_SECONDS, _tick)
        _timer.daemon = True
        _timer.start()


def _tick() -> None:
    global _timer
    with _lock:
        _timer = None
        for key in [key for key, (_, used) in _open.items() if time.monotonic() - used >= IDLE_SECONDS]:
            del _open[key]
        if _open:
            _start_timer()
