"""Live runs: the trainings of this process, what they told last, and the wish to stop one. Nothing of it outlives the
process; what does is in the run's folder."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from ...lora_train import TrainProgress
from .refusals import Refused

# More steps than a run takes between two writes of its metrics, so that those two together have no gap.
RECENT = 2000


@dataclass
class LiveRun:
    """A training that runs. `node` is the node that runs it on the page of `client`."""

    name: str
    node: str | None = None
    client: str | None = None
    began: float = field(default_factory=time.time)
    progress: TrainProgress | None = None
    recent: deque[tuple[int, float, float]] = field(default_factory=lambda: deque(maxlen=RECENT))
    stop: threading.Event = field(default_factory=threading.Event)

    def tell(self, progress: TrainProgress) -> None:
        self.progress = progress
        self.recent.append((progress.step, progress.loss, progress.learning_rate))

    def facts(self) -> dict[str, Any]:
        """What a page shows of it beside its curves."""
        told = {} if self.progress is None else asdict(self.progress)
        return {**told, "stopping": self.stop.is_set(), "began": round(self.began, 1)}


class LiveRuns:
    """All of them by name. Any thread may ask."""

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
        """Ask a run to save and end after its step."""
        run = self.find(name)
        if run is None:
            raise Refused(f"{name} is not training here, so there is nothing to stop", 409)
        run.stop.set()


RUNS = LiveRuns()
