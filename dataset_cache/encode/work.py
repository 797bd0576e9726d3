"""Work: what the phases of one encoding run share: where entries go, what failed and why, how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..sources import UNSETTLED, State
from ..write import CacheWriter
from .behind import Entry as Stored
from .behind import WriteBehind
from .explain import Entry, explain
from .phase import Failure
from .plan import Plan
from .prepare import Remembered
from .recipe import Planned
from .report import EncodeReport, Progress
from .survey import Layout

_COMMIT = 256  # files between two commits of the state


class Stopped(Exception):
    """Somebody asked to stop. What was encoded is kept."""


@dataclass
class Work:
    """One run. `failures` go by an entry's key, or by a sample's origin where its file is at fault."""

    plan: Plan
    layout: Layout
    state: State
    writer: CacheWriter
    behind: WriteBehind
    report: EncodeReport
    progress: Callable[[Progress], None]
    stop: Callable[[], bool]
    dropped: Mapping[bytes, str] = field(default_factory=dict)  # what repair took out of the cache, and why
    failures: dict[bytes | str, str] = field(default_factory=dict)
    settled: bool = True
    made_of: set[str] = field(default_factory=set)  # origins of samples that entries were made for
    _remembered: list[Remembered] = field(default_factory=list)
    _made: list[Entry] = field(default_factory=list)
    _outbox: list[Stored] = field(default_factory=list)

    def check_stop(self) -> None:
        if self.stop():
            raise Stopped

    def store(self, sample: Planned, name: str, key: bytes, value: Any) -> None:
        """Have an entry stored with the next `send`, or note why there is none."""
        if isinstance(value, Failure):
            self.failures[key] = value.reason
            return
        self._made.append((sample, name, key))
        self._outbox.append((key, value, name))

    def send(self) -> None:
        """Pass on what waits to be stored. Once a batch: every hand-over costs a change of threads."""
        if self._outbox:
            self.behind.put(self._outbox)
            self._outbox = []

    def remember(self, row: Remembered | None) -> None:
        """Keep what reading a file told, for the next run."""
        if row is not None:
            self._remembered.append(row)
            self.settled &= row[2] != UNSETTLED
        if len(self._remembered) >= _COMMIT:
            self.commit()

    def explain(self) -> None:
        """Say in the report why each entry was encoded. Left to the end: it would hold up the encoder."""
        self.made_of |= {sample.origin for sample, _, _ in self._made}
        self.report.made += explain(self._made, self.plan.recipe, self.state, self.dropped)
        self._made = []

    def commit(self) -> None:
        self.state.remember_files(self._remembered)
        self._remembered = []


class Clock:
    """Tells the progress of one phase."""

    def __init__(self, work: Work, phase: str, total: int) -> None:
        self._work, self._phase, self._total = work, phase, total
        self._started = time.monotonic()
        if total:
            self.tick(0)  # loading the encoder may take long

    def tick(self, done: int) -> None:
        """Between two batches: tell how far it is, and stop if asked to."""
        seconds = time.monotonic() - self._started
        hits = len(self._work.layout.samples) - self._total
        self._work.progress(Progress(self._phase, done, self._total, seconds, max(0, hits), self._work.behind.bytes))
        self._work.check_stop()
