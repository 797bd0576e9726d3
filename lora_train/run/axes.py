"""Axes: round tick values, and where a value stands on the picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .canvas import FADED, INK, RULE, Canvas, Point, text_width

LEFT, RIGHT, TOP, BOTTOM = 64, 24, 56, 46  # margins around the plotted area


@dataclass(frozen=True)
class Axes:
    """A rectangle of a canvas with a value range in each direction."""

    canvas: Canvas
    x: tuple[float, float]
    y: tuple[float, float]

    def place(self, x: float, y: float) -> Point:
        """The pixel of a value; values outside the range stay at its edge."""
        width, height = self.canvas.width - LEFT - RIGHT, self.canvas.height - TOP - BOTTOM
        return LEFT + width * _share(x, self.x), TOP + height * (1 - _share(y, self.y))

    def frame(self, title: str, x_label: str, note: str = "") -> None:
        """Title, rules with their values, and the name of the x axis."""
        canvas = self.canvas
        canvas.text((LEFT, 18), title, 17, INK)
        canvas.text((canvas.width - RIGHT, canvas.height - 8), note, 12, FADED, "rs")
        for value in ticks(*self.y, 8):
            _, y = self.place(self.x[0], value)
            canvas.line([(LEFT, y), (canvas.width - RIGHT, y)], RULE)
            canvas.text((LEFT - 10, y), label(value), 12, FADED, "rm")
        for value in ticks(*self.x, 8):
            x, _ = self.place(value, self.y[0])
            canvas.text((x, canvas.height - BOTTOM + 8), label(value), 12, FADED, "ma")
        canvas.text((LEFT, canvas.height - 8), x_label, 12, FADED, "ls")

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        """(words, color) at the top right, on one line."""
        x = self.canvas.width - RIGHT
        for words, color in reversed(entries):
            self.canvas.text((x, 29), words, 13, FADED, "rm")
            x -= text_width(words, 13)
            self.canvas.line([(x - 22, 29), (x - 6, 29)], color, 3)
            x -= 40


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` round values (1, 2 or 5 times a power of ten apart) from low to high."""
    if not high > low:
        return [low]
    raw = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def label(value: float) -> str:
    """A short form: 12,000 as 12k, 0.05 as it is."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.4g}" if value else "0"


def _share(value: float, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.5
