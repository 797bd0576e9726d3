"""Rounds: contestants take turns in one process, so that whatever slows the machine slows all of them."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIN_ROUNDS = 5


@dataclass(frozen=True)
class Times:
    """Seconds that an item took: by contestant, the median of every round."""

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
    """In every round, all contestants work through the round's items, the order turning.

    Items are timed one by one: a median over them leaves out those during which another process had the core.
    The first round, and what `between` does after a contestant's turn, are not counted.
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
