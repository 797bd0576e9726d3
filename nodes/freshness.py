"""Freshness: whether a cache is still as a node left it, so that the host runs the node again only if it is not.

The host asks for a fingerprint before a node runs, and again at the next prompt. What a saving node fingerprints is the
very thing that it changes, so its own changes must not count: the number returned here moves only when somebody else
changed the cache.
"""

import threading
from dataclasses import dataclass
from pathlib import Path

from ..dataset_cache.errors import CacheError
from ..dataset_cache.manifest import read_manifest


@dataclass
class _Left:
    generation: str | None
    number: int = 0


_lock = threading.Lock()
_left: dict[tuple[str, str], _Left] = {}  # (path, node) → how it was left
_FORGOTTEN = "forgotten"


def fingerprint(path: Path, node: str) -> int:
    """A number that stays the same while the cache at `path` is as this node left it."""
    now = _generation(path)
    with _lock:
        left = _left.setdefault((str(path), node), _Left(now))
        if left.generation != now:
            left.generation, left.number = now, left.number + 1
        return left.number


def leave(path: Path, node: str, generation: str) -> None:
    """This node made the cache what it is now."""
    with _lock:
        _left.setdefault((str(path), node), _Left(generation)).generation = generation


def forget(path: Path) -> None:
    """What nodes made of this cache is no longer there: those that saved it must run again."""
    with _lock:
        for (place, _), left in _left.items():
            if place == str(path):
                left.generation = _FORGOTTEN


def _generation(path: Path) -> str | None:
    try:
        manifest = read_manifest(path)
    except CacheError as error:
        return str(error)
    return manifest.generation if manifest else None
