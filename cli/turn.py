"""The turn of a training that a sweep or a worker has started: one at a time, and only while its starter lives.

The process that starts it holds a pipe to its standard input. When the pipe is closed, which the system does for a
process that is killed, the training stops after its step and saves. The next one waits until it has ended.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..dataset_cache import take_lock

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
    held = None
    while held is None:
        try:
            held = take_lock(lock, _SECONDS)
        except TimeoutError:
            if over.is_set():
                raise KeyboardInterrupt from None
    try:
        yield over.is_set
    finally:
        held.release()


def _watch(over: threading.Event) -> None:
    # Not sys.stdin, whose lock this thread would still hold when Python ends.
    with suppress(OSError):
        while os.read(_STDIN, 1):
            pass
    over.set()
