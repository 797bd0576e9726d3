"""A progress bar on stderr: one line, drawn anew a few times a second; nothing where no person looks."""

import argparse
import shutil
import sys
import time
from types import TracebackType

from .output import byte_count

_SECONDS_BETWEEN = 0.1
_BAR = 24


class Progress:
    """Call it with (done, total or None). It draws only on a terminal, and not beside `--json`."""

    def __init__(self, args: argparse.Namespace, label: str, unit: str = "bytes") -> None:
        self._label, self._unit = label, unit
        self._drawing = sys.stderr.isatty() and not args.json
        self._started = time.monotonic()
        self._drawn = 0.0

    def __call__(self, done: int, total: int | None = None, note: str = "") -> None:
        now = time.monotonic()
        if self._drawing and now - self._drawn >= _SECONDS_BETWEEN:
            self._drawn = now
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write("\r" + self._line(done, total, note, now)[:width].ljust(width))
            sys.stderr.flush()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            sys.stderr.write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
            sys.stderr.flush()

    def _line(self, done: int, total: int | None, note: str, now: float) -> str:
        count = byte_count if self._unit == "bytes" else "{:,}".format
        if not total:
            return f"{self._label}  {count(done)} {'' if self._unit == 'bytes' else self._unit} {note}"
        full = _BAR * min(done, total) // total
        seconds = now - self._started
        left = f"{seconds * (total - done) / done:,.0f} s left" if done and seconds > 1 else ""
        return f"{self._label}  [{'#' * full:.<{_BAR}}] {count(done)} of {count(total)}  {left}  {note}"
