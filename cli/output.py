"""What a command prints: text for people or one JSON object for programs, and a progress bar on a terminal."""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..dataset_cache import plural

_SECONDS_BETWEEN = 0.1
_BAR = 24


class Progress:
    """A one-line progress bar on stderr. Drawn only on a terminal and without `--json`."""

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

    def __exit__(self, *exc: object) -> None:
        if self._drawn:
            sys.stderr.write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
            sys.stderr.flush()

    def _line(self, done: int, total: int | None, note: str, now: float) -> str:
        count = byte_count if self._unit == "bytes" else "{:,}".format
        if not total:
            return f"{self._label}  {count(done)} {'' if self._unit == 'bytes' else self._unit} {note}"
        full = _BAR * min(done, total) // total
        seconds = now - self._started
        left = f"{clock(seconds * (total - done) / done)} left" if done and seconds > 1 else ""
        return f"{self._label}  [{'#' * full:.<{_BAR}}] {count(done)} of {count(total)}  {left}  {note}"


def add_output_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object and no progress bar")


def show(args: argparse.Namespace, facts: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Print the facts as JSON with `--json`, the lines otherwise."""
    if args.json:
        print(json.dumps(facts, indent=1, default=str))
    else:
        for line in lines:
            print(line)


def byte_count(count: int) -> str:
    """`1.4 GB`, in decimal units as disks are sold."""
    if abs(count) < 1000:
        return plural(count, "byte")
    size = count / 1000
    for unit in ("KB", "MB", "GB"):
        if abs(size) < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def clock(seconds: float) -> str:
    """`1:54`, `2:03:00`."""
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as aligned columns: the first left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]).rstrip()
        for row in rows
    ]
