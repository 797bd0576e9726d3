"""What a command prints: text for people or one JSON object for programs, and a progress bar on a terminal."""

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..quantity import byte_count

_SECONDS_BETWEEN = 0.1
_BAR = 24


class Progress:
    """A one-line progress bar on stderr. Drawn only on a terminal and without `--json`."""

    def __init__(self, args: argparse.Namespace, label: str, unit: str = "bytes") -> None:
        self._label, self._unit = label, unit
        self._json = args.json
        self._drawing = sys.stderr.isatty() and not args.json
        self._started = time.monotonic()
        self._drawn = 0.0

    def __call__(self, done: int, total: int | None = None, note: str = "") -> None:
        now = time.monotonic()
        if self._drawing and now - self._drawn >= _SECONDS_BETWEEN:
            self._drawn = now
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write("\r" + fit(self._parts(done, total, note, now), width).ljust(width))
            sys.stderr.flush()

    def say(self, line: str) -> None:
        """Print a line above the bar. Without `--json`."""
        if self._json:
            return
        if self._drawn:
            sys.stderr.write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
        print(line, file=sys.stderr, flush=True)
        self._drawn = 0.0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exc: object) -> None:
        if self._drawn:
            sys.stderr.write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
            sys.stderr.flush()

    def _parts(self, done: int, total: int | None, note: str, now: float) -> list[str]:
        count = byte_count if self._unit == "bytes" else "{:,}".format
        notes = re.split(r"  +|, ", note)
        if not total:
            return [self._label, count(done) + ("" if self._unit == "bytes" else f" {self._unit}"), *notes]
        full = _BAR * min(done, total) // total
        seconds = now - self._started
        left = f"{clock(seconds * (total - done) / done)} left" if done and seconds > 1 else ""
        return [self._label, f"[{'#' * full:.<{_BAR}}] {count(done)} of {count(total)}", left, *notes]


def add_output_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="Print one JSON object and no progress bar")


def show(args: argparse.Namespace, facts: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Print the facts as JSON with `--json`, the lines otherwise."""
    if args.json:
        print(json.dumps(facts, indent=1, default=str))
    else:
        for line in lines:
            print(line)


def fit(parts: Sequence[str], width: int) -> str:
    """The parts in one line, without those at the end that do not fit: half a number would be a wrong one."""
    line = ""
    for part in filter(None, parts):
        longer = f"{line}  {part}" if line else part[:width]
        if len(longer) > width:
            break
        line = longer
    return line


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
