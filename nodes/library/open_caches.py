"""Kept: things of caches that were used a moment ago, open for the next use. One that is idle is let go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from ...dataset_cache import MANIFEST

IDLE_SECONDS = 10.0


class OfGeneration(Protocol):
    generation: str


T = TypeVar("T", bound=OfGeneration)


class Kept(Generic[T]):
    """By folder and generation. Nothing on disk is touched while the lock is held: a slow one stops nobody else."""

    def __init__(
        self, open: Callable[[Path, str], T], most: int | None = None, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        self._open, self._most, self._idle_seconds = open, most, idle_seconds
        self._lock = threading.Lock()
        self._things: dict[tuple[str, str], tuple[T, float]] = {}  # with the time of use, the latest last
        self._timer: threading.Timer | None = None

    def __len__(self) -> int:
        return len(self._things)

    def get(self, folder: Path, generation: str = "") -> T:
        """The thing of this generation; one that is not kept is opened."""
        found = self._find(folder, generation) if (folder / MANIFEST).exists() else None
        thing = self._open(folder, generation) if found is None else found
        key, gone = (str(folder), thing.generation), []
        with self._lock:
            known = self._things.pop(key, None)
            thing, spare = (thing, None) if known is None else (known[0], thing)  # another thread may have been quicker
            while self._most is not None and len(self._things) >= self._most:
                gone.append(self._things.pop(next(iter(self._things))))
            self._things[key] = (thing, time.monotonic())
            self._start_timer()
        del gone, spare  # which may close files
        return thing

    def close(self, folder: Path | None = None, idle: float = 0.0) -> None:
        """Let go of what was not used for so long: of a folder, or of all. Whoever uses one now keeps it open."""
        now = time.monotonic()
        with self._lock:
            keys = [key for key, (_, used) in self._things.items() if now - used >= idle]
            gone = [self._things.pop(key) for key in keys if folder is None or key[0] == str(folder)]
        del gone

    def tick(self) -> None:
        """Close what is idle, and come again while anything is kept."""
        self.close(idle=self._idle_seconds)
        with self._lock:
            self._timer = None
            if self._things:
                self._start_timer()

    def _find(self, folder: Path, generation: str) -> T | None:
        with self._lock:
            found = self._things.get((str(folder), generation))
        return found[0] if found else None

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(self._idle_seconds, self.tick)
            self._timer.daemon = True
            self._timer.start()
