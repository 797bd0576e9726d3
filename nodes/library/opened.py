"""Opened: caches that were used a moment ago stay open for the next use. One that is idle is closed, so that nothing
which the host's executor keeps holds a lease: cleaning and replacing a cache never wait for a forgotten workflow."""

from pathlib import Path

from ...dataset_cache import Cache, CacheError, open_cache, read_manifest
from . import freshness
from .open_caches import Kept


def opened(path: Path, generation: str) -> Cache:
    """The cache at `path` as of this generation: the published one, or one that is open still."""
    return KEPT.get(path, generation)


def close_idle(path: Path | None = None) -> None:
    """Forget the cache at `path`, or all of them. Whoever uses one now keeps it open."""
    KEPT.close(path)


def _open_generation(path: Path, generation: str) -> Cache:
    if read_manifest(path) is None:
        freshness.forget_result(path)
        raise CacheError(f"the dataset {path.name} is gone: {path} was removed or renamed; save it again")
    cache = open_cache(path)
    if cache.generation != generation:
        freshness.forget_result(path)
        raise CacheError(
            f"the dataset {path.name} was saved again since it was loaded (it was {generation[:8]}, now it is "
            f"{cache.generation[:8]}); queue the workflow again to use what it holds now"
        )
    return cache


KEPT = Kept(_open_generation)
