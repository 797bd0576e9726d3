"""The curves of a run as charts show them: read from its metrics file, smoothed, and thinned without losing peaks."""

from __future__ import annotations

import json
import math
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...dataset_cache import StoredFile
from ...lora_train import Clock, open_run_file, read_from, smooth_curve, thin_curve

MAX_RUNS = 32  # kept in memory; 10,000 steps take about 500 kB
MAX_STEPS = 2_000_000  # read per run
READ_BYTES = 1 << 20  # at once; no line is as long
TAIL_BYTES = 256  # identify a file: more than one line, which contains the time of its step

MAX_STEP = 1 << 53  # larger numbers are not from a run

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
    norms: array = field(default_factory=lambda: array("d"))  # of the gradients; nan where a line has none
    epochs: array = field(default_factory=lambda: array("q"))
    times: array = field(default_factory=lambda: array("d"))  # seconds of training, over all resumes
    clock: Clock = field(default_factory=Clock)
    validation: list[tuple[int, float]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        """Add one line. Raises ValueError, KeyError or TypeError, and adds nothing, if these numbers are missing."""
        step = int(row["step"])
        if not 0 <= step < MAX_STEP:
            raise ValueError("not a step")
        if "loss" in row:
            loss, rate = _finite(row["loss"]), _finite(row["learning_rate"])
            self.steps.append(step)
            self.losses.append(loss)
            self.rates.append(rate)
            self.norms.append(_number(row.get("gradient_norm"), math.nan))
            self.epochs.append(int(_number(row.get("epoch"), 0)))
            self.times.append(self.clock.add(row.get("time")))
        elif "validation" in row:
            self.validation.append((step, _finite(row["validation"])))


class CurveReader:
    """Reads metrics files; if one has grown, only its new lines."""

    def __init__(self) -> None:
        self._columns: OrderedDict[Path, Columns] = OrderedDict()
        self._lock = threading.Lock()

    def curves(
        self,
        path: Path,
        points: int,
        smoothing: float,
        recent: Sequence[tuple[int, float, float]] = (),
        first: int = 0,
        last: int = MAX_STEP,
    ) -> dict[str, Points]:
        """All curves of a run from step `first` to `last`, with at most `points` points each.

        `recent` are steps that may not be on disk yet.
        `epoch` and `time` say how many epochs and seconds of training a step ends.
        """
        with self._lock:
            columns = self._read(path)
            known = columns.steps[-1] if columns.steps else -1
            new = [row for row in recent if row[0] > known]
            steps = [*columns.steps, *(row[0] for row in new)]
            losses = [*columns.losses, *(row[1] for row in new)]
            rates = [*columns.rates, *(row[2] for row in new)]
            norms = [(step, norm) for step, norm in zip(columns.steps, columns.norms) if not math.isnan(norm)]
            validation, epochs = list(columns.validation), _epoch_ends(columns)
            times = list(zip(columns.steps, columns.times))
        shown = slice(bisect_left(steps, first), bisect_right(steps, last))
        within = [point for point in validation if first <= point[0] <= last]
        return {
            "loss": thin_points(steps[shown], losses[shown], points),
            "smooth": thin_points(steps[shown], smooth_curve(losses, smoothing)[shown], points),
            "validation": thin_points(*_split(within), points),
            "learning_rate": thin_points(steps[shown], rates[shown], points),
            "gradient_norm": thin_points(*_split([point for point in norms if first <= point[0] <= last]), points),
            "epoch": _spread(epochs, points),
            "time": _spread(times, points),
        }

    def table(self, path: Path) -> str:
        """Every step of a run as CSV."""
        with self._lock:
            columns = self._read(path)
            rows: dict[int, list[Any]] = {}
            numbers = columns.epochs, columns.times, columns.losses, columns.rates, columns.norms
            for step, *values in zip(columns.steps, *numbers):
                rows[step] = [*("" if math.isnan(value) else value for value in values), ""]
            for step, value in columns.validation:
                rows.setdefault(step, [""] * 6)[-1] = value
        lines = (f"{step},{','.join(map(str, values))}" for step, values in sorted(rows.items()))
        return "\n".join(("step,epoch,seconds,loss,learning_rate,gradient_norm,validation", *lines)) + "\n"

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


def _number(value: Any, otherwise: float) -> float:
    """The value if it is a finite number from 0 on."""
    known = type(value) in (int, float) and 0 <= value < MAX_STEP
    return float(value) if known else otherwise


def _epoch_ends(columns: Columns) -> list[tuple[int, float]]:
    """(step, epochs done after it) at each border of two epochs, and at the last step, whose epoch counts in part."""
    steps, epochs = columns.steps, columns.epochs
    if not steps:
        return []
    ends = [(steps[0] - 1, float(epochs[0]))]
    ends += [(steps[n - 1], float(epochs[n])) for n in range(1, len(steps)) if epochs[n] > epochs[n - 1]]
    lengths = [later[0] - sooner[0] for sooner, later in pairwise(ends)]
    done = steps[-1] - ends[-1][0]
    return [*ends, (steps[-1], ends[-1][1] + min(done / max(lengths, default=done), 1.0))]


def _spread(points: Sequence[tuple[int, float]], most: int) -> Points:
    """At most `most` of these points, evenly spread, with the first and the last."""
    places = range(len(points))
    if len(points) > most:
        places = [round(n * (len(points) - 1) / (most - 1)) for n in range(most)]
    return [[points[place][0], _round(points[place][1])] for place in places]


def _split(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value for _, value in points]


def _round(value: float) -> float:
    """To five significant digits: a chart shows no more, and the response is half as long."""
    return float(f"{value:.5g}")
