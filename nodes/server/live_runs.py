"""Live runs: the trainings of this process, their latest progress, and requests to stop them. Kept in memory only; what
lasts is in the run's folder."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from ...lora_train import TrainProgress
from ..outside import Refused

# More steps than a run takes between two writes of its metrics file, so that file and memory together have no gap.
RECENT = 2000


@dataclass
class LiveRun:
    """A running training. `node` is its node on the page `client`."""

    name: str
    node: str | None = None
    client: str | None = None
    began: float = field(default_factory=time.time)
    progress: TrainProgress | None = None
    recent: deque[tuple[int, float, float]] = field(default_factory=lambda: deque(maxlen=RECENT))
    stop: threading.Event = field(default_factory=threading.Event)

    def update(self, progress: TrainProgress) -> None:
        self.progress = progress
        self.recent.append((progress.step, progress.loss, progress.learning_rate))

    def to_json(self) -> dict[str, Any]:
        """What a page shows of it, except its curves."""
        progress = {} if self.progress is None else asdict(self.progress)
        return {**progress, "stopping": self.stop.is_set(), "began": round(self.began, 1)}


class LiveRuns:
    """The live runs by name. Thread-safe."""

    def __init__(self) -> None:
        self._runs: dict[str, LiveRun] = {}
        self._lock = threading.Lock()

    @contextmanager
    def running(self, run: LiveRun) -> Iterator[LiveRun]:
        with self._lock:
            self._runs[run.name] = run
        try:
            yield run
        finally:
            with self._lock:
                del self._runs[run.name]

    def find(self, name: str) -> LiveRun | None:
        with self._lock:
            return self._runs.get(name)

    def stop(self, name: str) -> None:
        """Ask a run to save and end after the current step."""
        run = self.find(name)
        if run is None:
            raise Refused(f"{name} is not training on this server", 409)
        run.stop.set()


RUNS = LiveRuns()
