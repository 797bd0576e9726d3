"""The curves of a run as charts show them: read from its metrics file, smoothed, and thinned without losing peaks."""

from __future__ import annotations

import json
import math
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...dataset_cache import StoredFile
from ...lora_train import open_run_file, read_from, smooth_curve, thin_curve

MAX_RUNS = 32  # kept in memory; 10,000 steps take about 250 kB
MAX_STEPS = 2_000_000  # read per run
READ_BYTES = 1 << 20  # at once; no line is as long
TAIL_BYTES = 256  # identify a file: more than one line, which contains the time of its step

Points = list[list[float]]  # [step, value], steps rising


@dataclass
class Columns:
    """The numbers of a metrics file up to `offset`. If the bytes before it differ from `tail`, it is another file: the
    inode of a removed file is reused."""

    inode: int = -1
    offset: int = 0
    tail: bytes = b""
    steps: array = field(default_factory=lambda: array("q"))
    losses: array = field(default_factory=lambda: array("d"))
    rates: array = field(default_factory=lambda: array("d"))
    validation: list[tuple[int, float]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        """Add one line. Raises ValueError, KeyError or TypeError, and adds nothing, if these numbers are missing."""
        step = int(row["step"])
        if not 0 <= step < 1 << 53:
            raise ValueError("not a step")
        if "loss" in row:
            loss, rate = _finite(row["loss"]), _finite(row["learning_rate"])
            self.steps.append(step)
            self.losses.append(loss)
            self.rates.append(rate)
        elif "validation" in row:
            self.validation.append((step, _finite(row["validation"])))


class CurveReader:
    """Reads metrics files; if one has grown, only its new lines."""

    def __init__(self) -> None:
        self._columns: OrderedDict[Path, Columns] = OrderedDict()
        self._lock = threading.Lock()

    def curves(
        self, path: Path, points: int, smoothing: float, recent: Sequence[tuple[int, float, float]] = ()
    ) -> dict[str, Points]:
        """All curves of a run, with at most `points` points each. `recent` are steps that may not be on disk yet."""
        with self._lock:
            columns = self._read(path)
            last = columns.steps[-1] if columns.steps else -1
            new = [row for row in recent if row[0] > last]
            steps = [*columns.steps, *(row[0] for row in new)]
            losses = [*columns.losses, *(row[1] for row in new)]
            rates = [*columns.rates, *(row[2] for row in new)]
            validation = list(columns.validation)
        return {
            "loss": thin_points(steps, losses, points),
            "smooth": thin_points(steps, smooth_curve(losses, smoothing), points),
            "validation": thin_points(*_split(validation), points),
            "learning_rate": thin_points(steps, rates, points),
        }

    def _read(self, path: Path) -> Columns:
        columns = self._columns[path] = _read_on(path, self._columns.pop(path, None) or Columns())
        while len(self._columns) > MAX_RUNS:
            self._columns.popitem(last=False)
        return columns


def thin_points(steps: Sequence[int], values: Sequence[float], most: int) -> Points:
    """At most `most` points: the lowest and the highest of each interval, so that single-step peaks remain."""
    return [[steps[place], _round(values[place])] for place in thin_curve(values, most)]


def _read_on(path: Path, columns: Columns) -> Columns:
    file = open_run_file(path)
    if file is None:
        return Columns()
    inode, size = file.identity[1], min(columns.offset, TAIL_BYTES)
    if inode != columns.inode or read_from(file, columns.offset - size, size) != columns.tail:
        columns = Columns(inode)
    for line in _lines(file, columns.offset):
        if len(columns.steps) >= MAX_STEPS:
            break
        columns.offset += len(line)
        columns.tail = (columns.tail + line)[-TAIL_BYTES:]
        _take(columns, line)
    return columns


def _lines(file: StoredFile, start: int) -> Iterator[bytes]:
    """The complete lines from `start` on. One that is still being written is read next time."""
    rest = b""
    while len(rest) < READ_BYTES and (data := read_from(file, start, READ_BYTES)):
        start += len(data)
        *lines, rest = (rest + data).split(b"\n")
        yield from (line + b"\n" for line in lines)


def _take(columns: Columns, line: bytes) -> None:
    """Skip a line that is incomplete or invalid."""
    try:
        columns.add(json.loads(line))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return


def _finite(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError("not a finite number")
    return float(value)


def _split(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value for _, value in points]


def _round(value: float) -> float:
    """To five significant digits: a chart shows no more, and the response is half as long."""
    return float(f"{value:.5g}")
