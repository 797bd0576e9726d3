"""Opened: caches that were used a moment ago stay open for the next use. One that is idle is closed, so that nothing
which the host's executor keeps holds a lease: cleaning and replacing a cache never wait for a forgotten workflow."""

import threading
import time
from pathlib import Path

from ..dataset_cache.errors import CacheError
from ..dataset_cache.manifest import NAME as MANIFEST
from ..dataset_cache.manifest import read_manifest
from ..dataset_cache.reader import Cache, open_cache
from . import freshness

IDLE_SECONDS = 10.0
_Key = tuple[str, str]

_lock = threading.Lock()
_open: dict[_Key, tuple[Cache, float]] = {}
_timer: threading.Timer | None = None


def opened(path: Path, generation: str) -> Cache:
    """The cache at `path` as of this generation: the published one, or one that is open still."""
    key = (str(path), generation)
    with _lock:
        known = _open.get(key) if (path / MANIFEST).exists() else None
        cache = known[0] if known else _open_generation(path, generation)
        _open[key] = (cache, time.monotonic())
        _start_timer()
    return cache


def close_idle(path: Path | None = None, idle: float = 0.0) -> None:
    """Forget caches that were not used for so long: at `path`, or all of them. Whoever uses one now keeps it open."""
    now = time.monotonic()
    with _lock:
        for key, (_, used) in list(_open.items()):
            if now - used >= idle and (path is None or key[0] == str(path)):
                del _open[key]


def _open_generation(path: Path, generation: str) -> Cache:
    if read_manifest(path) is None:
        freshness.forget(path)
        raise CacheError(f"the dataset {path.name} is gone: {path} was removed or renamed; save it again")
    cache = open_cache(path)
    if cache.generation != generation:
        freshness.forget(path)
        raise CacheError(
            f"the dataset {path.name} was saved again since it was loaded (it was {generation[:8]}, now it is "
            f"{cache.generation[:8]}); queue the workflow again to use what it holds now"
        )
    return cache


def _start_timer() -> None:
    global _timer
    if _timer is None:
        _timer = threading.Timer(IDLE_SECONDS, _tick)
        _timer.daemon = True
        _timer.start()


def _tick() -> None:
    global _timer
    close_idle(idle=IDLE_SECONDS)
    with _lock:
        _timer = None
        if _open:
            _start_timer()
