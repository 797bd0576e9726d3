"""Smoothed and thinned curves."""

from __future__ import annotations

from collections.abc import Sequence


class Average:
    """A running average in which each value counts `keep` times as much as the next; unbiased from the first value."""

    def __init__(self, keep: float) -> None:
        self._keep, self._sum, self._weight = keep, 0.0, 0.0

    def add(self, value: float) -> float:
        """Add a value; returns the average so far."""
        keep = self._keep
        self._sum, self._weight = keep * self._sum + (1 - keep) * value, keep * self._weight + (1 - keep)
        return self._sum / self._weight

    @property
    def value(self) -> float | None:
        """The average so far; None before the first value."""
        return self._sum / self._weight if self._weight else None


def smooth_curve(values: Sequence[float], keep: float) -> list[float]:
    """The running average at each value; `keep` from 0 (no smoothing) to below 1."""
    average = Average(keep)
    return [average.add(value) for value in values]


def thin_curve(values: Sequence[float], most: int) -> list[int]:
    """Positions of at most `most` values: the lowest and highest of each stretch, so that every peak stays visible."""
    count = len(values)
    if count <= most:
        return list(range(count))
    stretches = max((most - 2) // 2, 1)
    chosen = {0, count - 1}
    for number in range(stretches):
        stretch = range(number * count // stretches, (number + 1) * count // stretches)
        chosen |= {min(stretch, key=values.__getitem__), max(stretch, key=values.__getitem__)}
    return sorted(chosen)
