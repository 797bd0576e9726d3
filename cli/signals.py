"""Signals that end a command: each acts as Ctrl-C, so that the work so far is saved."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

# A service manager or `kill`; a closed terminal; on Windows Ctrl-Break or a closed console.
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name))
# What `Popen.wait` returns for a process that did not handle Ctrl-C or one of these: on Windows STATUS_CONTROL_C_EXIT.
INTERRUPTING = frozenset((0xC000013A, -signal.SIGINT, *(-number for number in ENDING)))


@contextlib.contextmanager
def ending_as_interrupt() -> Iterator[None]:
    """Meanwhile these signals act as Ctrl-C, once: a second one must not disturb the saving that the first began."""
    ended = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ended
        if ended:
            return
        ended = True
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # ignored, as in a background job of a shell script
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    with _handled(end):
        yield


@contextlib.contextmanager
def passed_on_to(child: subprocess.Popen) -> Iterator[None]:
    """Meanwhile these signals reach the child, which saves its work and ends."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    with _handled(pass_on):
        yield


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    # Python delivers signals to the main thread only. One that is ignored (nohup) stays ignored.
    inside = threading.current_thread() is threading.main_thread()
    chosen = [number for number in ENDING if inside and signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in chosen}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
