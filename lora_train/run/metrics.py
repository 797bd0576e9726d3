"""The measurements of a run: metrics.jsonl, live progress, and curves smoothed and thinned for charts."""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...dataset_cache import Traffic, replace_file
from ...errors import TrainError
from ..compute import allocated_bytes
from .events import Events
from .run_files import read_run_file
from .smoothing import Average

FLUSH_SECONDS = 1.0
RATE_WINDOW = 50  # steps over which the shown speed is averaged
MEMORY_SECONDS = 1.0  # between two measurements of memory
SMOOTHING = 0.98  # of the loss in live progress
MAX_STEP = 1 << 53  # larger numbers are not from a run


@dataclass(frozen=True)
class TrainProgress:
    """One finished step, as reported to the progress callback."""

    step: int
    steps: int
    epoch: int
    loss: float
    smooth: float
    learning_rate: float
    rate: float  # steps per second
    samples_per_second: float  # counts the rows of all batches of a step
    time_left: float  # seconds
    data_wait: float  # share of the training time so far, 0 to 1
    memory: int  # bytes in use: on the GPU, or by the process
    gradient_norm: float | None = None  # before clipping

    def line(self) -> str:
        """A short line for a log or terminal."""
        return (
            f"step {self.step}/{self.steps}  loss {self.smooth:.4f}  lr {self.learning_rate:.2e}  "
            f"{self.rate:.2f} steps/s  {format_seconds(self.time_left)} left  data wait {self.data_wait:.1%}"
        )


@dataclass(frozen=True)
class Curves:
    """(step, value) of the training steps and of the validations."""

    losses: list[tuple[int, float]] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    rates: list[tuple[int, float]] = field(default_factory=list)  # learning rate
    norms: list[tuple[int, float]] = field(default_factory=list)  # of gradients, before clipping


class MetricsFile:
    """Appends JSON lines. A run that resumes at step n first removes the lines of later steps."""

    def __init__(self, path: Path, resume_at: int = 0) -> None:
        self.path, self.resume_at = path, resume_at
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = _remove_after(path, resume_at)
        self.seconds = max((row["time"] for row in kept if is_finite(row.get("time"))), default=0.0)
        self.losses = [float(row["loss"]) for row in kept if "loss" in row]  # of the steps before
        # The last step that has a validation loss, which is not measured again, and this loss.
        self.validated = max(
            ((row["step"], float(row["validation"])) for row in kept if "validation" in row), default=None
        )
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed by __exit__
        self._flushed = time.monotonic()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, **values: Any) -> None:
        """Append one line; it reaches the file within about a second, or with the next flush."""
        self._file.write(json.dumps(values, allow_nan=False) + "\n")
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._file.flush()
        self._flushed = time.monotonic()

    def sync(self) -> None:
        """Write everything to the disk itself: what a saved state builds on must survive a power failure too."""
        self.flush()
        os.fsync(self._file.fileno())


class NoMetrics(MetricsFile):
    """The metrics of a rank that writes none."""

    def __init__(self, resume_at: int) -> None:
        self.resume_at, self.seconds, self.losses, self.validated = resume_at, 0.0, [], None

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, **values: Any) -> None:
        pass

    def flush(self) -> None:
        pass

    def sync(self) -> None:
        pass


class Reporter:
    """Measures steps, writes metrics and calls the progress callback; takes a few microseconds per step."""

    def __init__(
        self,
        metrics: MetricsFile,
        steps: int,
        device: torch.device,
        callback: Callable[[TrainProgress], None] | None = None,
        events: Events | None = None,
    ) -> None:
        self._metrics, self._steps, self._device = metrics, steps, device
        self._callback, self._events = callback, events
        self._times: deque[float] = deque([time.perf_counter()], maxlen=RATE_WINDOW + 1)
        self._rows: deque[int] = deque(maxlen=RATE_WINDOW)  # of the steps between these times
        self._began = time.perf_counter()
        self._ended: float | None = None
        self._average = Average(SMOOTHING)
        for loss in metrics.losses:  # a resumed run shows the same average as an uninterrupted one
            self._average.add(loss)
        self._memory, self._measured = 0, -MEMORY_SECONDS
        self.waited = self.paused = 0.0  # seconds spent on data, and on saving, validation and sample images

    def step(
        self,
        step: int,
        epoch: int,
        loss: float,
        learning_rate: float,
        waited: float,
        rows: int = 1,
        gradient_norm: float | None = None,
        traffic: Traffic | None = None,
    ) -> TrainProgress:
        """Report a finished step of this many rows.

        `waited` is the total time spent waiting for data so far, `traffic` what reading a remote dataset has cost.
        """
        now = time.perf_counter()
        self._times.append(now - self.paused)
        self._rows.append(rows)
        self.waited = waited
        rate = self._rate()
        progress = TrainProgress(
            step=step,
            steps=self._steps,
            epoch=epoch,
            loss=loss,
            smooth=self._average.add(loss),
            learning_rate=learning_rate,
            rate=rate,
            samples_per_second=rate * sum(self._rows) / len(self._rows),
            time_left=(self._steps - step) / rate,
            data_wait=self.data_wait(now),
            memory=self._measure_memory(now),
            gradient_norm=gradient_norm,
        )
        self._metrics.write(
            step=step,
            epoch=epoch,
            loss=loss,
            learning_rate=learning_rate,
            waited=round(waited, 4),
            time=round(self._metrics.seconds + now - self._began, 3),
            gradient_norm=gradient_norm,
            **({} if traffic is None else {"remote": traffic.to_json()}),
        )
        for name, value in (("loss", loss), ("learning_rate", learning_rate), ("gradient_norm", gradient_norm)):
            self._event(name, value, step)
        if self._callback is not None:
            self._callback(progress)
        return progress

    def validation(self, step: int, loss: float) -> None:
        """Report a validation loss. Validations are rare, so each is flushed at once."""
        self._metrics.write(step=step, validation=loss)
        self._metrics.flush()
        self._metrics.validated = step, loss
        self._event("validation", loss, step)

    def data_wait(self, now: float | None = None) -> float:
        """The share of the training time, without pauses, that was spent waiting for data."""
        spent = (now - self._began if now is not None else self.seconds()) - self.paused
        return min(self.waited / spent, 1.0) if spent > 0 else 0.0

    def seconds(self) -> float:
        """Seconds since training began, or from its beginning to its end."""
        return (self._ended if self._ended is not None else time.perf_counter()) - self._began

    def end(self) -> None:
        """Training has ended: times stay as they are now, so that all reports agree."""
        self._ended = time.perf_counter()

    def is_validated(self, step: int) -> bool:
        """Whether the validation loss after this step is in the metrics, also from before a resume."""
        return self.validation_at(step) is not None

    def validation_at(self, step: int) -> float | None:
        """The validation loss after this step, if it was the last one to be validated."""
        last = self._metrics.validated
        return last[1] if last is not None and last[0] == step else None

    @property
    def smooth(self) -> float | None:
        """The running average of the loss, as it is shown."""
        return self._average.value

    @property
    def first(self) -> int:
        """The step after which measuring began: 0, or the one that the run resumed at."""
        return self._metrics.resume_at

    def sync(self) -> None:
        """Write all metrics to disk, before a state is saved."""
        self._metrics.sync()
        if self._events is not None:
            self._events.flush()

    def _rate(self) -> float:
        return (len(self._times) - 1) / max(self._times[-1] - self._times[0], 1e-9)

    def _measure_memory(self, now: float) -> int:
        if now - self._measured >= MEMORY_SECONDS:
            self._memory, self._measured = memory_in_use(self._device), now
        return self._memory

    def _event(self, name: str, value: float | None, step: int) -> None:
        if self._events is not None and value is not None:
            self._events.add_scalar(name, value, step)


class Clock:
    """Seconds of training over all resumes, from the times in lines: those of older files begin again at each."""

    def __init__(self) -> None:
        self._before = self._last = 0.0

    def add(self, seconds: Any) -> float:
        """Add the time of a line, if it has one; returns the seconds until then."""
        if is_finite(seconds) and seconds >= 0:
            self._before += self._last if seconds < self._last else 0.0
            self._last = float(seconds)
        return self._before + self._last


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Lines with a step, and a finite loss if they have one. Others are skipped, such as one cut short by a kill.

    Raises TrainError if the file cannot be read now.
    """
    for line in (read_run_file(path) or b"").splitlines():
        try:
            row = json.loads(line.decode(errors="replace"))
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and _is_step(row.get("step")) and all(map(is_finite, _losses(row))):
            yield row


def read_curves(path: Path) -> Curves:
    """The training and validation losses of a run."""
    curves = Curves()
    for row in read_metrics(path):
        if "loss" in row:
            curves.losses.append((row["step"], float(row["loss"])))
            for name, series in (("learning_rate", curves.rates), ("gradient_norm", curves.norms)):
                series += [(row["step"], float(row[name]))] if is_finite(row.get(name)) else []
        elif "validation" in row:
            curves.validation.append((row["step"], float(row["validation"])))
    return curves


def memory_in_use(device: torch.device) -> int:
    """Bytes allocated on a GPU, or resident in this process; 0 if psutil is missing."""
    found = allocated_bytes(device)
    if found is not None:
        return found
    try:
        import psutil
    except ImportError:
        return 0
    return psutil.Process().memory_info().rss


def format_seconds(seconds: float) -> str:
    """114 as 1:54, 3700 as 1:01:40."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _losses(row: dict[str, Any]) -> list[Any]:
    return [row[name] for name in ("loss", "validation") if name in row]


def _is_step(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_STEP


def is_finite(value: Any) -> bool:
    """Whether a value from JSON is a finite number."""
    return (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) < MAX_STEP)


def _remove_after(path: Path, step: int) -> list[dict[str, Any]]:
    """Remove the lines of later steps; of step 0 a run that starts there has none. Returns the others.

    Their times become those of the whole run, which the next lines continue.
    """
    kept, clock = [row for row in read_metrics(path) if step and row["step"] <= step], Clock()
    for row in kept:
        if "time" in row:
            row["time"] = round(clock.add(row["time"]), 3)
    try:
        if os.path.lexists(path):
            replace_file(path, "".join(json.dumps(row) + "\n" for row in kept).encode())
    except OSError as error:
        raise TrainError(f"{path}: cannot be written ({error.strerror}); move it away if it is a folder") from None
    return kept
