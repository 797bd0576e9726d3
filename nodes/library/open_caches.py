"""Caches kept open between two uses, and closed when idle.

Results that ComfyUI's executor caches must not hold a lease: cleaning or replacing a cache never waits for an old
workflow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from ...dataset_cache import Address, Cache, CacheError, is_published, open_cache, read_manifest
from . import freshness

IDLE_SECONDS = 10.0


class OfGeneration(Protocol):
    generation: str


T = TypeVar("T", bound=OfGeneration)


class OpenPool(Generic[T]):
    """Open things by folder and generation. The disk is never accessed under the lock: a slow one blocks no other."""

    def __init__(
        self, open: Callable[[Any, str], T], most: int | None = None, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        self._open, self._most, self._idle_seconds = open, most, idle_seconds
        self._lock = threading.Lock()
        self._things: dict[tuple[str, str], tuple[T, float]] = {}  # with the time of the last use, the latest last
        self._timer: threading.Timer | None = None

    def __len__(self) -> int:
        return len(self._things)

    def get(self, folder: Path | Address, generation: str = "") -> T:
        """The thing of this generation; opened if it is not in the pool."""
        # At an address, each look is a request, and what was opened from there needs nothing more of it.
        is_there = isinstance(folder, Address) or is_published(folder)
        found = self._find(folder, generation) if is_there else None
        thing = self._open(folder, generation) if found is None else found
        key, gone = (str(folder), thing.generation), []
        with self._lock:
            known = self._things.pop(key, None)
            thing, spare = (thing, None) if known is None else (known[0], thing)  # another thread may have been faster
            while self._most is not None and len(self._things) >= self._most:
                gone.append(self._things.pop(next(iter(self._things))))
            self._things[key] = (thing, time.monotonic())
            self._start_timer()
        del gone, spare  # outside the lock: this may close files
        return thing

    def close(self, folder: Path | Address | None = None, idle: float = 0.0) -> None:
        """Drop what was not used for `idle` seconds, of one folder or of all. Things still in use stay open."""
        now = time.monotonic()
        with self._lock:
            keys = [key for key, (_, used) in self._things.items() if now - used >= idle]
            gone = [self._things.pop(key) for key in keys if folder is None or key[0] == str(folder)]
        del gone

    def tick(self) -> None:
        """Drop what is idle; repeats while anything is open."""
        self.close(idle=self._idle_seconds)
        with self._lock:
            self._timer = None
            if self._things:
                self._start_timer()

    def _find(self, folder: Path | Address, generation: str) -> T | None:
        with self._lock:
            found = self._things.get((str(folder), generation))
        return found[0] if found else None

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(self._idle_seconds, self.tick)
            self._timer.daemon = True
            self._timer.start()


def opened(path: Path | Address, generation: str) -> Cache:
    """The cache at `path` in this generation: the published one, or one that is still open."""
    return OPEN_CACHES.get(path, generation)


def close_idle(path: Path | Address | None = None) -> None:
    """Drop the cache at `path`, or all of them. Callers that still use one keep it open."""
    OPEN_CACHES.close(path)


def _open_generation(path: Path | Address, generation: str) -> Cache:
    if read_manifest(path) is None:
        freshness.forget_result(path)
        raise CacheError(f"cache {path.name} is gone: {path} was removed or renamed; save it again")
    cache = open_cache(path)
    if cache.generation != generation:
        freshness.forget_result(path)
        raise CacheError(
            f"cache {path.name} was saved again since it was loaded (generation {generation[:12]}, now "
            f"{cache.generation[:12]}); queue the workflow again to use the new one"
        )
    return cache


OPEN_CACHES = OpenPool(_open_generation)
