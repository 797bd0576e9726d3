"""Signals that wait: weights must not be left between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def signals_held() -> Iterator[None]:
    """Inside the `with`, Ctrl-C and SIGTERM wait until it ends: weights must not be left between two steps."""
    held: list[tuple[Any, Any]] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # only there are handlers called and can be set
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(signal.getsignal(number)):
                before[number] = signal.signal(number, lambda *signaled: held.append(signaled))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number, frame in held:
            before[number](number, frame)
