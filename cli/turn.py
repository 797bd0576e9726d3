"""The turn of a training that a sweep or a worker has started: one at a time, and only while its starter lives.

The process that starts it holds a pipe to its standard input. When the pipe is closed, which the system does for a
process that is killed, the training stops after its step and saves. The next one waits until it has ended.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..dataset_cache import Lock, take_lock

_SECONDS = 0.5  # between two looks at the pipe while another training has the turn
_STDIN = 0


@contextmanager
def take_turn(lock: Path | None) -> Iterator[Callable[[], bool]]:
    """Hold the lock of a turn, and give a function that says whether the training should end. Without a lock, never."""
    if lock is None:
        yield lambda: False
        return
    over = threading.Event()
    threading.Thread(target=_watch, args=(over,), name="streamcache-turn", daemon=True).start()
    held = _take(lock, over.is_set)
    if held is None:
        raise KeyboardInterrupt
    try:
        yield over.is_set
    finally:
        held.release()


def wait_for_turn(lock: Path, stop: Callable[[], bool] = lambda: False, words: str = "") -> bool:
    """Wait until the training of a starter that was killed has ended, which takes it a step. False if `stop` says so.

    If there is one, the words are printed.
    """
    held = _take(lock, stop, words)
    if held is not None:
        held.release()
    return held is not None


def _take(lock: Path, stop: Callable[[], bool], words: str = "") -> Lock | None:
    while not stop():
        try:
            return take_lock(lock, _SECONDS)
        except TimeoutError:
            if words:
                print(words, file=sys.stderr, flush=True)
            words = ""
    return None


def _watch(over: threading.Event) -> None:
    # Not sys.stdin, whose lock this thread would still hold when Python ends.
    with suppress(OSError):
        while os.read(_STDIN, 1):
            pass
    over.set()
