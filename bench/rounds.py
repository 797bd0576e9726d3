"""Timing in rounds: contestants take turns in one process, so that a slow machine slows all of them alike."""

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PIECE = 8 << 20

MIN_ROUNDS = 5


@dataclass(frozen=True)
class Settings:
    """Sizes of a full run. `QUICK` only checks that everything works; its numbers mean little."""

    samples: int = 2000
    batches: int = 60
    rounds: int = 15
    written: int = 2048
    write_rounds: int = 7
    shared_samples: int = 4000
    shared_captions: int = 200
    indexed: int = 1_000_000
    opens: int = 15
    visited: int = 10_000
    files: int = 100_000
    scan_rounds: int = 7
    encoded: int = 100
    encode_rounds: int = 6
    host_rounds: int = 5
    grown: tuple[int, ...] = (10_000, 100_000)
    streamed: int = 1000


QUICK = Settings(
    samples=24,
    batches=3,
    rounds=5,
    written=8,
    write_rounds=5,
    shared_samples=200,
    shared_captions=10,
    indexed=10_000,
    opens=5,
    visited=200,
    files=200,
    scan_rounds=5,
    encoded=8,
    encode_rounds=5,
    host_rounds=1,
    grown=(500,),
    streamed=16,
)


@dataclass(frozen=True)
class Times:
    """Seconds per item: for each contestant, the median of every round."""

    by_name: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.by_name[name])

    def ratio(self, name: str, to: str) -> float:
        """The median over the rounds of (this contestant's time / the other's in the same round)."""
        return statistics.median(a / b for a, b in zip(self.by_name[name], self.by_name[to], strict=True))


def take_turns(
    contestants: Mapping[str, Callable[[Any], object]],
    rounds: Sequence[Sequence[Any]],
    between: Callable[[], None] = lambda: None,
) -> Times:
    """In every round, each contestant processes the round's items; the order of contestants rotates.

    Items are timed one by one: the median ignores those during which another process had the core. The first round
    is not counted, nor is the time of `between`, which runs after each contestant's turn.
    """
    assert len(rounds) > MIN_ROUNDS
    names = list(contestants)
    medians: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for number, items in enumerate(rounds):
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                medians[name].append(statistics.median(_time(contestants[name], items)))
                between()
    finally:
        gc.enable()
    return Times({name: values[1:] for name, values in medians.items()})


def _time(work: Callable[[Any], object], items: Sequence[Any]) -> list[float]:
    seconds = []
    for item in items:
        started = time.perf_counter()
        work(item)
        seconds.append(time.perf_counter() - started)
    return seconds


def warm(folder: Path) -> None:
    """Flush all files below `folder`, drop them from the page cache, and read them again in order.

    So no contestant has a better layout in memory than another.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        _drop(path)
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.read(PIECE):
                pass


def _drop(path: Path) -> None:
    if not hasattr(os, "posix_fadvise"):
        return
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
