"""Plots: the loss curve, the bucket chart and grids of pictures, drawn with Pillow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from .axes import Axes
from .canvas import BLUE, FADED, GREEN, INK, ORANGE, PALE_BLUE, Canvas, text_width

Series = Sequence[tuple[int, float]]  # (step, value), steps rising


def plot_loss(losses: Series, validation: Series = (), size: tuple[int, int] = (960, 480)) -> Image.Image:
    """Each step's loss, its smoothed course and the held-out loss. One step, or none yet, is a plot too."""
    canvas = Canvas(*size)
    steps = [step for step, _ in losses] + [step for step, _ in validation]
    axes = Axes(canvas, (min(steps, default=0), max(steps, default=1)), _range(losses, validation))
    axes.frame("Loss", "step", f"{len(losses):,} steps")
    if losses:
        canvas.line([axes.place(*point) for point in _thin(losses, size[0])], PALE_BLUE, 1.2)
        smooth = _thin(smoothed(losses), size[0])
        canvas.line([axes.place(*point) for point in smooth], BLUE, 2.4)
        if len(losses) == 1:
            canvas.dot(axes.place(*losses[0]), BLUE)
    if validation:
        canvas.line([axes.place(*point) for point in validation], ORANGE, 2)
        for point in validation if len(validation) <= 60 else [validation[-1]]:
            canvas.dot(axes.place(*point), ORANGE)
    legend = [("each step", PALE_BLUE), ("smoothed", BLUE), ("held out", ORANGE)]
    axes.legend(legend if validation else legend[:2])
    return canvas.image()


def plot_buckets(counts: Mapping[str, int], width: int = 960) -> Image.Image:
    """One bar per bucket, largest first; `counts` maps a bucket's name to its samples."""
    rows = sorted(counts.items(), key=lambda row: -row[1])
    shown, rest = rows[:24], rows[24:]
    if rest:
        shown.append((f"{len(rest)} more", sum(count for _, count in rest)))
    canvas = Canvas(width, 76 + 30 * max(len(shown), 1))
    total = sum(counts.values())
    canvas.text((24, 18), "Samples by bucket", 17, INK)
    canvas.text((width - 24, 29), f"{total:,} samples in {len(counts):,} buckets", 13, FADED, "rm")
    names = max((text_width(name) for name, _ in shown), default=0)
    room = width - 24 - 24 - names - 14 - 90
    most = max((count for _, count in shown), default=1)
    for row, (name, count) in enumerate(shown):
        y, left = 66 + 30 * row, 24 + names + 14
        canvas.text((left - 14, y + 9), name, 13, FADED, "rm")
        canvas.box(left, y, left + max(room * count / most, 2), y + 18, GREEN, 4)
        share = f"{count:,}  {100 * count / max(total, 1):.0f} %"
        canvas.text((left + max(room * count / most, 2) + 10, y + 9), share, 13, INK, "lm")
    return canvas.image()


def plot_share(title: str, parts: Mapping[str, tuple[float, str]], width: int = 960) -> Image.Image:
    """One bar split into named parts, {name: (amount, color)}: where the time of a run went."""
    canvas = Canvas(width, 116)
    canvas.text((24, 18), title, 17, INK)
    total = sum(amount for amount, _ in parts.values()) or 1.0
    x, words_x = 24.0, 24.0
    for name, (amount, color) in parts.items():
        wide = (width - 48) * amount / total
        canvas.box(x, 52, x + wide, 76, color)
        x += wide
        canvas.box(words_x, 91, words_x + 10, 101, color, 2)
        words = f"{name} {100 * amount / total:.1f} %"
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
    """Pictures in rows and columns with their names; each fits its cell, small ones grow in whole steps."""
    gap, left = 8, 24 + (max((text_width(name) for name in row_names), default=-16) + 16)
    names = [_lines(name, cell) for name in column_names]
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
    for row, pictures in enumerate(rows):
        for column, picture in enumerate(pictures):
            fitted = _fit(picture, cell)
            x = round(left + column * (cell + gap) + (cell - fitted.width) / 2)
            y = round(top + row * (cell + gap) + (cell - fitted.height) / 2)
            page.paste(fitted, (x, y))
    return page


def smoothed(series: Series) -> list[tuple[int, float]]:
    """A centred average over about a twentieth of the run to either side: it neither lags nor starts off biased."""
    reach = min(max(len(series) // 20, 1), 2000)
    window = np.hanning(2 * reach + 3)[1:-1]
    values = np.array([value for _, value in series], float)
    sums = np.convolve(values, window)[reach:-reach] / np.convolve(np.ones(len(values)), window)[reach:-reach]
    return [(step, float(value)) for (step, _), value in zip(series, sums)]


def _range(losses: Series, validation: Series) -> tuple[float, float]:
    """What to show: nearly all losses, so that one spike does not flatten the curve, and every held-out one."""
    values = np.array([value for _, value in losses] or [0.0, 1.0], float)
    low, high = np.percentile(values, 0.5), np.percentile(values, 99)
    for _, value in (*validation, *(smoothed(losses) if losses else ())):
        low, high = min(low, value), max(high, value)
    room = 0.06 * (high - low) or max(abs(high) * 0.1, 1e-6)
    return max(float(low - room), 0.0) if low >= 0 else float(low - room), float(high + room)


def _thin(series: Series, width: int) -> list[tuple[int, float]]:
    """The same curve in at most two points per pixel: the least and the most of each stretch."""
    if len(series) <= 2 * width:
        return list(series)
    points = []
    for stretch in np.array_split(np.arange(len(series)), width):
        part = [series[index] for index in stretch]
        ends = {min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}
        points.extend(sorted(ends))
    return points


def _lines(name: str, width: float, most: int = 3) -> list[str]:
    """The name broken at spaces to fit this width; what does not fit ends in dots."""
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


def _shorten(line: str, width: float) -> str:
    if text_width(line) <= width:
        return line
    while len(line) > 1 and text_width(line + "…") > width:
        line = line[:-1]
    return line + "…"


def _fit(picture: Image.Image, cell: int) -> Image.Image:
    longest = max(picture.size)
    if longest > cell:
        shrink = cell / longest
        size = (max(1, round(picture.width * shrink)), max(1, round(picture.height * shrink)))
        return picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    times = cell // longest
    return picture.convert("RGB").resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)
