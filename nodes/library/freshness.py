"""Whether a node's result is still as the node left it, so that ComfyUI runs the node again only if it is not.

ComfyUI asks for a fingerprint before a node runs, and again at the next prompt. The fingerprint covers the node's own
result, so its own changes must not count. The number changes only if something else changed the result, or the node
itself did so for another workflow (with another `caller`): ComfyUI may have cached the results of both.
"""

import itertools
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

from ...dataset_cache import Address, CacheError, read_manifest

_MOST = 4096
_FORGOTTEN = object()


@dataclass
class _Left:
    """How a node left its result: `look` returned `state`; `number` is its fingerprint."""

    look: Callable[[], Hashable]
    state: Hashable
    number: int


_lock = threading.Lock()
_left: dict[tuple[str, str], _Left] = {}  # (place, caller) → how it was left
_numbers = itertools.count()


def result_fingerprint(place: Path, caller: str, look: Callable[[], Hashable] | None = None) -> int:
    """A number that stays the same while the result of `caller` at `place` is as it was left.

    `look` returns the current state of the result; by default the generation of a cache.
    """
    key, first = (str(place), caller), look or (lambda: _published(place))
    with _lock:
        known = _left.get(key)
        look, seen = (known.look, known.state) if known is not None else (first, _FORGOTTEN)
    now = look()  # without the lock: a slow disk must not block the other nodes
    with _lock:
        left = _recall(key, look, now)
        # A node may have recorded a new result meanwhile; then this look is out of date.
        if left.state != now and left.state is seen and left.look is look:
            left.state, left.number = now, next(_numbers)
        return left.number


def record_result(
    place: Path | Address, caller: str, state: Hashable, look: Callable[[], Hashable] | None = None
) -> None:
    """Record that `caller` made the result: `look` returns `state` until it is changed."""
    look = look or (lambda: _published(place))
    with _lock:
        left = _recall((str(place), caller), look, state)
        left.look, left.state = look, state


def forget_result(place: Path | Address) -> None:
    """Mark the results at `place` as gone: their nodes must run again."""
    with _lock:
        for (known, _), left in _left.items():
            if known == str(place):
                left.state = _FORGOTTEN


def _published(path: Path | Address) -> str | None:
    """The generation of a cache, or the error if it cannot be read."""
    try:
        manifest = read_manifest(path)
    except CacheError as error:
        return str(error)
    return manifest.generation if manifest else None


def _recall(key: tuple[str, str], look: Callable[[], Hashable], state: Hashable) -> _Left:
    if key not in _left:
        while len(_left) >= _MOST:
            del _left[next(iter(_left))]
        _left[key] = _Left(look, state, next(_numbers))
    return _left[key]
