"""Freshness: whether what a node made is still as it left it, so that the host runs the node again only if it is not.

The host asks for a fingerprint before a node runs, and again at the next prompt. What a node fingerprints here is the
very thing that it makes, so its own changes must not count: the number returned moves only when somebody else changed
it, or when the node itself did for another workflow (the `asker` differs then): the host may have kept both results.
"""

import itertools
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

from ...dataset_cache import CacheError, read_manifest

_MOST = 4096
_FORGOTTEN = object()


@dataclass
class _Left:
    look: Callable[[], Hashable]
    state: Hashable
    number: int


_lock = threading.Lock()
_left: dict[tuple[str, str], _Left] = {}  # (place, asker) → how it was left
_numbers = itertools.count()


def result_fingerprint(place: Path, asker: str, look: Callable[[], Hashable] | None = None) -> int:
    """A number that stays the same while what `asker` made at `place` (a cache, unless `look` looks at something else)
    is as it was left."""
    with _lock:
        left = _recall(place, asker, look or (lambda: published(place)))
        now = left.look()
        if left.state != now:
            left.state, left.number = now, next(_numbers)
        return left.number


def leave_result(place: Path, asker: str, state: Hashable, look: Callable[[], Hashable] | None = None) -> None:
    """The asker made what is there now: `state` is what looking at it gives as long as nobody changes it."""
    look = look or (lambda: published(place))
    with _lock:
        left = _recall(place, asker, look)
        left.look, left.state = look, state


def forget_result(place: Path) -> None:
    """What nodes made here is no longer there: they must run again."""
    with _lock:
        for (known, _), left in _left.items():
            if known == str(place):
                left.state = _FORGOTTEN


def published(path: Path) -> str | None:
    """The generation of a cache, which is what it looks like."""
    try:
        manifest = read_manifest(path)
    except CacheError as error:
        return str(error)
    return manifest.generation if manifest else None


def _recall(place: Path, asker: str, look: Callable[[], Hashable]) -> _Left:
    key = str(place), asker
    if key not in _left:
        while len(_left) >= _MOST:
            del _left[next(iter(_left))]
        _left[key] = _Left(look, look(), next(_numbers))
    return _left[key]
