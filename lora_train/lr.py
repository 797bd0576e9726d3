"""Learning-rate schedules: the factor on the learning rate, as a pure function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """A schedule over `steps` steps, of which the first `warmup` rise from near zero."""

    schedule: str
    steps: int
    warmup: int = 0
    cycles: int = 1
    power: float = 1.0
    floor: float = 0.0

    def factor(self, step: int) -> float:
        """The factor for step 0, 1, …: a function of the step alone, so a resumed run has nothing to restore."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        # The last step's factor is near the floor, not at it: a step at zero would be wasted.
        done = min((step - self.warmup) / max(self.steps - self.warmup, 1), 1.0)
        return self.floor + (1 - self.floor) * SCHEDULES[self.schedule](done, self)


# Share of the run that is done, in [0, 1] → share of the learning rate.
SCHEDULES: dict[str, Callable[[float, Curve], float]] = {
    "constant": lambda done, curve: 1.0,
    "linear": lambda done, curve: 1 - done,
    "cosine": lambda done, curve: _cosine(done),
    "cosine_restarts": lambda done, curve: _cosine(done * curve.cycles % 1 if done < 1 else 1.0),
    "polynomial": lambda done, curve: (1 - done) ** curve.power,
}


def _cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2
