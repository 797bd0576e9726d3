"""The run's measurements: metrics.jsonl, one line per fact, readable by anything and safe to cut at any line."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import TrainError

RATE_WINDOW = 50  # steps that the shown rate looks back on
MEMORY_SECONDS = 1.0

FLUSH_SECONDS = 1.0


@dataclass(frozen=True)
class Curves:
    """What a loss plot shows."""

    losses: list[tuple[int, float]] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)


class MetricsFile:
    """Appends lines. A run resumed at step n first drops what an unsaved continuation wrote after n."""

    def __init__(self, path: Path, resume_at: int = 0) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        _keep_until(path, resume_at)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed by close, which `with` calls
        self._flushed = time.monotonic()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, **facts: Any) -> None:
        """One line; it reaches the file within about a second, or with the next flush."""
        self._file.write(json.dumps(facts, allow_nan=False) + "\n")
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._file.flush()
        self._flushed = time.monotonic()


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line; a line that a kill cut short is the last one, and is passed over."""
    if not path.exists():
        return
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue


def read_curves(path: Path) -> Curves:
    """The losses and held-out losses of a run."""
    curves = Curves()
    for row in read_metrics(path):
        if "loss" in row:
            curves.losses.append((row["step"], row["loss"]))
        elif "validation" in row:
            curves.validation.append((row["step"], row["validation"]))
    return curves


def _keep_until(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept = [row for row in read_metrics(path) if row["step"] <= step]
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    os.replace(temporary, path)


@dataclass(frozen=True)
class TrainProgress:
    """A step as the live callback hears of it."""

    step: int
    steps: int
    epoch: int
    loss: float
    smooth: float
    learning_rate: float
    rate: float  # steps per second
    samples_per_second: float  # rows that were trained, of all batches of a step
    time_left: float  # seconds
    data_wait: float  # share of the time so far, 0..1
    memory: int  # bytes in use on the device, or by the process

    def line(self) -> str:
        """A short numeric line for a log or a terminal."""
        return (
            f"step {self.step}/{self.steps}  loss {self.smooth:.4f}  lr {self.learning_rate:.2e}  "
            f"{self.rate:.2f} steps/s  {format_seconds(self.time_left)} left  data wait {self.data_wait:.1%}"
        )


class Reporter:
    """Counts, writes metrics and tells the callback. Cheap: a few microseconds a step beside the line it writes."""

    def __init__(
        self,
        metrics: MetricsFile,
        steps: int,
        device: torch.device,
        callback: Callable[[TrainProgress], None] | None = None,
        events: Any = None,
    ) -> None:
        self._metrics, self._steps, self._device = metrics, steps, device
        self._callback, self._events = callback, events
        self._times: deque[float] = deque([time.perf_counter()], maxlen=RATE_WINDOW + 1)
        self._rows: deque[int] = deque(maxlen=RATE_WINDOW)  # of the steps between these times
        self._began = time.perf_counter()
        self._average, self._weight = 0.0, 0.0
        self._memory, self._measured = 0, -MEMORY_SECONDS
        self.waited = 0.0
        self.paused = 0.0  # seconds in saving, validation and samples: no part of a step

    def step(
        self, step: int, epoch: int, loss: float, learning_rate: float, waited: float, rows: int = 1
    ) -> TrainProgress:
        """A step that has ended, with the rows it trained on; `waited` is the whole run's waiting for data so far."""
        now = time.perf_counter()
        self._times.append(now - self.paused)
        self._rows.append(rows)
        self._average, self._weight = 0.98 * self._average + 0.02 * loss, 0.98 * self._weight + 0.02
        self.waited = waited
        rate = self._rate()
        progress = TrainProgress(
            step=step,
            steps=self._steps,
            epoch=epoch,
            loss=loss,
            smooth=self._average / self._weight,
            learning_rate=learning_rate,
            rate=rate,
            samples_per_second=rate * sum(self._rows) / len(self._rows),
            time_left=(self._steps - step) / rate,
            data_wait=self.data_wait(now),
            memory=self._measure_memory(now),
        )
        self._metrics.write(
            step=step,
            epoch=epoch,
            loss=loss,
            learning_rate=learning_rate,
            waited=round(waited, 4),
            time=round(now - self._began, 3),
        )
        self._event("loss", loss, step)
        self._event("learning_rate", learning_rate, step)
        if self._callback is not None:
            self._callback(progress)
        return progress

    def validation(self, step: int, loss: float) -> None:
        """A held-out loss. They are rare, so each is on disk at once."""
        self._metrics.write(step=step, validation=loss)
        self._metrics.flush()
        self._event("validation", loss, step)

    def data_wait(self, now: float | None = None) -> float:
        """The share of training time (pauses apart) that stood still for data."""
        spent = (now or time.perf_counter()) - self._began - self.paused
        return min(self.waited / spent, 1.0) if spent > 0 else 0.0

    def seconds(self) -> float:
        """Since the report began."""
        return time.perf_counter() - self._began

    def flush(self) -> None:
        self._metrics.flush()

    def _rate(self) -> float:
        return (len(self._times) - 1) / max(self._times[-1] - self._times[0], 1e-9)

    def _measure_memory(self, now: float) -> int:
        if now - self._measured >= MEMORY_SECONDS:
            self._memory, self._measured = memory_in_use(self._device), now
        return self._memory

    def _event(self, name: str, value: float, step: int) -> None:
        if self._events is not None:
            self._events.add_scalar(name, value, step)


def open_events(folder: Path) -> Any:
    """A TensorBoard writer, or a TrainError with the command that installs it."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise TrainError('tensorboard = true: needs tensorboardX; run "pip install tensorboardX"') from None
    return SummaryWriter(str(folder))


def memory_in_use(device: torch.device) -> int:
    """Bytes: allocated on a GPU, else resident in this process; 0 where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096
    try:
        import psutil
    except ImportError:
        return 0
    return psutil.Process().memory_info().rss


def format_seconds(seconds: float) -> str:
    """75 as 1m15s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
