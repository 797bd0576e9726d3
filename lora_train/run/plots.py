"""Plots drawn with Pillow: loss curves, bucket charts and image grids."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from ...dataset_cache import drawable, font_for, plural
from .metrics import format_seconds
from .smoothing import smooth_curve, thin_curve

OVERSIZE = 3  # drawn pixels per shown pixel, in each direction
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 56, 46  # margins around the plotted area

INK = "#1f2937"
FADED = "#64748b"
RULE = "#e5e9f0"
PAPER = "#ffffff"
BLUE = "#2563eb"
PALE_BLUE = "#bfd3fb"
ORANGE = "#ea580c"
GREEN = "#0d9488"

Point = tuple[float, float]
Series = Sequence[tuple[int, float]]  # (step, value), in the order of steps


class Canvas:
    """Draws at `OVERSIZE` and scales down once, for smooth edges. Coordinates are shown pixels from the top left."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._image = Image.new("RGB", (width * OVERSIZE, height * OVERSIZE), PAPER)
        self._draw = ImageDraw.Draw(self._image)

    def line(self, points: Sequence[Point], color: str, width: float = 1.0) -> None:
        """Draw a line through the points, with round joints and ends."""
        scaled = [(x * OVERSIZE, y * OVERSIZE) for x, y in points]
        thick = max(1, round(width * OVERSIZE))
        self._draw.line(scaled, fill=color, width=thick, joint="curve")
        if width > 1 and scaled:
            for x, y in (scaled[0], scaled[-1]):
                self._draw.ellipse([x - thick / 2, y - thick / 2, x + thick / 2, y + thick / 2], fill=color)

    def dot(self, at: Point, color: str, radius: float = 3.5) -> None:
        """Draw a dot with a rim in the background color, so that it stands out on a line."""
        for size, fill in ((radius + 1.5, PAPER), (radius, color)):
            box = [(at[0] - size), (at[1] - size), (at[0] + size), (at[1] + size)]
            self._draw.ellipse([value * OVERSIZE for value in box], fill=fill)

    def box(self, left: float, top: float, right: float, bottom: float, color: str, radius: float = 0.0) -> None:
        """Draw a filled rectangle, at least a third of a pixel wide."""
        right, bottom = max(right, left + 1 / OVERSIZE), max(bottom, top + 1 / OVERSIZE)
        radius = min(radius, (right - left) / 2, (bottom - top) / 2)
        corners = [value * OVERSIZE for value in (left, top, right, bottom)]
        self._draw.rounded_rectangle(corners, radius=radius * OVERSIZE, fill=color)

    def text(self, at: Point, words: str, size: int = 13, color: str = INK, anchor: str = "la") -> None:
        """Draw text; `anchor` is Pillow's: l m r across, a m s up and down."""
        x, y = at[0] * OVERSIZE, at[1] * OVERSIZE
        self._draw.text((x, y), drawable(words), fill=color, font=font_for(words, size * OVERSIZE), anchor=anchor)

    def image(self) -> Image.Image:
        """The drawing at its shown size."""
        return self._image.resize((self.width, self.height), Image.Resampling.BOX)


@dataclass(frozen=True)
class Axes:
    """The plotted area of a canvas, with a value range for each axis."""

    canvas: Canvas
    x: tuple[float, float]
    y: tuple[float, float]

    def place(self, x: float, y: float) -> Point:
        """The pixel of a value; values outside the range are moved to its edge."""
        width, height = self.canvas.width - LEFT - RIGHT, self.canvas.height - TOP - BOTTOM
        return LEFT + width * _share(x, self.x), TOP + height * (1 - _share(y, self.y))

    def frame(self, title: str, x_label: str, note: str = "") -> None:
        """Draw the title, grid lines with their values, and the label of the x axis."""
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
        """Draw (text, color) entries on one line at the top right."""
        x = self.canvas.width - RIGHT
        for words, color in reversed(entries):
            self.canvas.text((x, 29), words, 13, FADED, "rm")
            x -= text_width(words, 13)
            self.canvas.line([(x - 22, 29), (x - 6, 29)], color, 3)
            x -= 40


def plot_loss(losses: Series, validation: Series = (), size: tuple[int, int] = (960, 480)) -> Image.Image:
    """The loss of each step, the smoothed loss and the validation loss; works for any number of steps, even 0."""
    canvas = Canvas(*size)
    steps = [step for step, _ in losses] + [step for step, _ in validation]
    axes = Axes(canvas, (min(steps, default=0), max(steps, default=1)), _range(losses, validation))
    axes.frame("Loss", "step", f"{len(losses):,} steps")
    if losses:
        canvas.line([axes.place(*point) for point in _thinned(losses, size[0])], PALE_BLUE, 1.2)
        smooth = _thinned(_smoothed(losses), size[0])
        canvas.line([axes.place(*point) for point in smooth], BLUE, 2.4)
        if len(losses) == 1:
            canvas.dot(axes.place(*losses[0]), BLUE)
    if validation:
        canvas.line([axes.place(*point) for point in validation], ORANGE, 2)
        for point in validation if len(validation) <= 60 else [validation[-1]]:
            canvas.dot(axes.place(*point), ORANGE)
    legend = [("each step", PALE_BLUE), ("smoothed", BLUE), ("validation", ORANGE)]
    axes.legend(legend if validation else legend[:2])
    return canvas.image()


def plot_curve(title: str, series: Series, size: tuple[int, int] = (960, 240)) -> Image.Image | None:
    """One value per step, such as the learning rate; None without values."""
    if not series:
        return None
    canvas = Canvas(*size)
    axes = Axes(canvas, (series[0][0], max(series[-1][0], series[0][0] + 1)), _range(series, ()))
    axes.frame(title, "step")
    canvas.line([axes.place(*point) for point in _thinned(series, size[0])], BLUE, 1.6)
    if len(series) == 1:
        canvas.dot(axes.place(*series[0]), BLUE)
    return canvas.image()


def plot_buckets(counts: Mapping[str, int], width: int = 960) -> Image.Image:
    """One bar per bucket, largest first; `counts` maps bucket names to sample counts."""
    rows = sorted(counts.items(), key=lambda row: -row[1])
    shown, rest = rows[:24], rows[24:]
    if rest:
        shown.append((f"{len(rest)} more", sum(count for _, count in rest)))
    canvas = Canvas(width, 76 + 30 * max(len(shown), 1))
    total = sum(counts.values())
    canvas.text((24, 18), "Samples by bucket", 17, INK)
    canvas.text((width - 24, 29), f"{plural(total, 'sample')} in {plural(len(counts), 'bucket')}", 13, FADED, "rm")
    names = max((text_width(name) for name, _ in shown), default=0)
    room = width - 24 - 24 - names - 14 - 90
    most = max((count for _, count in shown), default=1)
    for row, (name, count) in enumerate(shown):
        y, left = 66 + 30 * row, 24 + names + 14
        canvas.text((left - 14, y + 9), name, 13, FADED, "rm")
        canvas.box(left, y, left + max(room * count / most, 2), y + 18, GREEN, 4)
        share = f"{count:,}  {count / max(total, 1):.0%}"
        canvas.text((left + max(room * count / most, 2) + 10, y + 9), share, 13, INK, "lm")
    return canvas.image()


def plot_share(title: str, parts: Mapping[str, tuple[float, str]], width: int = 960) -> Image.Image:
    """One bar split into named parts, {name: (seconds, color)}."""
    canvas = Canvas(width, 116)
    canvas.text((24, 18), title, 17, INK)
    total = sum(amount for amount, _ in parts.values()) or 1.0
    x, words_x = 24.0, 24.0
    for name, (amount, color) in parts.items():
        wide = (width - 48) * amount / total
        canvas.box(x, 52, x + wide, 76, color)
        x += wide
        canvas.box(words_x, 91, words_x + 10, 101, color, 2)
        words = f"{name} {format_seconds(amount)}"
        canvas.text((words_x + 16, 96), words, 13, FADED, "lm")
        words_x += text_width(words) + 44
    return canvas.image()


def draw_grid(
    rows: Sequence[Sequence[Image.Image]],
    row_names: Sequence[str] = (),
    column_names: Sequence[str] = (),
    title: str = "",
    cell: int = 128,
) -> Image.Image:
    """Images in named rows and columns. Large images shrink to the cell; small ones grow by whole factors."""
    gap, left = 8, 24 + (max((text_width(name) for name in row_names), default=-16) + 16)
    names = [wrap_text(name, cell) for name in column_names]
    lines = max((len(name) for name in names), default=0)
    top = 24 + (34 if title else 0) + (8 + 17 * lines if lines else 0)
    columns = max((len(row) for row in rows), default=0)
    width = max(round(left + columns * (cell + gap) - gap + 24), round(text_width(title, 17)) + 48)
    canvas = Canvas(width, top + len(rows) * (cell + gap) - gap + 24)
    canvas.text((24, 18), title, 17, INK)
    for column, name in enumerate(names):
        for line, words in enumerate(reversed(name)):
            canvas.text((left + column * (cell + gap) + cell / 2, top - 10 - 17 * line), words, 13, FADED, "ms")
    for row, name in enumerate(row_names):
        canvas.text((left - 16, top + row * (cell + gap) + cell / 2), name, 13, FADED, "rm")
    page = canvas.image()
    for row, images in enumerate(rows):
        for column, image in enumerate(images):
            fitted = _fit(image, cell)
            x = round(left + column * (cell + gap) + (cell - fitted.width) / 2)
            y = round(top + row * (cell + gap) + (cell - fitted.height) / 2)
            page.paste(fitted, (x, y))
    return page


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` round values from low to high, 1, 2 or 5 times a power of ten apart."""
    if not high > low:
        return [low]
    raw = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def label(value: float) -> str:
    """A short text: 12k for 12,000, 0.05 for 0.05."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.4g}" if value else "0"


def text_width(words: str, size: int = 13) -> float:
    """The width of the text in shown pixels."""
    return font_for(words, size * OVERSIZE).getlength(drawable(words)) / OVERSIZE


def wrap_text(name: str, width: float, most: int = 3) -> list[str]:
    """The name wrapped to this width; text that does not fit ends in an ellipsis."""
    lines: list[str] = []
    for word in name.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1] + " …"]
    return [_shorten(line, width) for line in lines]


def _smoothed(series: Series) -> list[tuple[int, float]]:
    """Averaged over about a twentieth of the run."""
    values = smooth_curve([value for _, value in series], max(1 - 20 / len(series), 0.0) if series else 0.0)
    return [(step, value) for (step, _), value in zip(series, values)]


def _thinned(series: Series, width: int) -> list[tuple[int, float]]:
    """At most two points per pixel."""
    return [series[place] for place in thin_curve([value for _, value in series], 2 * width)]


def _range(losses: Series, validation: Series) -> tuple[float, float]:
    """The y range: nearly all losses, so that one spike does not flatten the curve, and every validation loss."""
    values = np.array([value for _, value in losses] or [0.0, 1.0], float)
    low, high = np.percentile(values, 0.5), np.percentile(values, 99)
    for _, value in (*validation, *_smoothed(losses)):
        low, high = min(low, value), max(high, value)
    room = 0.06 * (high - low) or max(abs(high) * 0.1, 1e-6)
    return max(float(low - room), 0.0) if low >= 0 else float(low - room), float(high + room)


def _shorten(line: str, width: float) -> str:
    if text_width(line) <= width:
        return line
    while len(line) > 1 and text_width(line + "…") > width:
        line = line[:-1]
    return line + "…"


def _fit(image: Image.Image, cell: int) -> Image.Image:
    longest = max(image.size)
    if longest > cell:
        shrink = cell / longest
        size = (max(1, round(image.width * shrink)), max(1, round(image.height * shrink)))
        return image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    times = cell // longest
    return image.convert("RGB").resize((image.width * times, image.height * times), Image.Resampling.NEAREST)


def _share(value: float, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.5
