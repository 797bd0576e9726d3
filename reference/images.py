"""Synthetic captioned images: colored shapes for pre-training, and a creature that no base model knows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from PIL import Image, ImageDraw

SMOOTH = 4  # images are drawn this many times larger and then reduced, for soft edges

COLORS = {
    "red": (214, 40, 40),
    "orange": (247, 127, 0),
    "yellow": (252, 211, 62),
    "green": (46, 160, 67),
    "blue": (38, 84, 200),
    "purple": (128, 50, 170),
    "white": (240, 240, 235),
    "black": (25, 25, 30),
}

# Width and height: three aspect ratios of similar area, so that a dataset has three buckets.
SIZES = ((64, 64), (72, 56), (56, 72))

Point = tuple[float, float]


@dataclass(frozen=True)
class CaptionedImage:
    """An image with its caption."""

    image: Image.Image
    caption: str


def shapes(count: int, seed: int = 0, sizes: tuple[tuple[int, int], ...] = SIZES) -> Iterator[CaptionedImage]:
    """Captioned shapes such as "a red circle on blue"."""
    draw = random.Random(f"shapes {seed}")
    for _ in range(count):
        color, ground = draw.sample(sorted(COLORS), 2)
        shape = draw.choice(sorted(SHAPES))
        yield CaptionedImage(
            _paint(draw, draw.choice(sizes), ground, SHAPES[shape], color), f"a {color} {shape} on {ground}"
        )


def creatures(count: int, seed: int = 0, sizes: tuple[tuple[int, int], ...] = SIZES) -> Iterator[CaptionedImage]:
    """The new concept: "a zogglewump on blue"."""
    draw = random.Random(f"creatures {seed}")
    for _ in range(count):
        ground = draw.choice(sorted(set(COLORS) - {"purple", "black"}))
        yield CaptionedImage(
            _paint(draw, draw.choice(sizes), ground, _zogglewump, "purple"), f"a zogglewump on {ground}"
        )


Painter = Callable[[ImageDraw.ImageDraw, float, float, float, tuple[int, int, int]], None]


def _paint(draw: random.Random, size: tuple[int, int], ground: str, painter: Painter, color: str) -> Image.Image:
    width, height = (side * SMOOTH for side in size)
    image = Image.new("RGB", (width, height), COLORS[ground])
    radius = min(width, height) * draw.uniform(0.34, 0.4)
    x = width / 2 + draw.uniform(-1, 1) * (width / 2 - radius) * 0.3
    y = height / 2 + draw.uniform(-1, 1) * (height / 2 - radius) * 0.3
    painter(ImageDraw.Draw(image), x, y, radius, COLORS[color])
    return image.resize(size, Image.Resampling.BOX)


def _circle(canvas: ImageDraw.ImageDraw, x: float, y: float, radius: float, color: tuple[int, int, int]) -> None:
    canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)


def _polygon(*points: Point) -> Painter:
    def painter(canvas: ImageDraw.ImageDraw, x: float, y: float, radius: float, color: tuple[int, int, int]) -> None:
        canvas.polygon([(x + px * radius, y + py * radius) for px, py in points], fill=color)

    return painter


def _star_points(tips: int = 5, inner: float = 0.45) -> Iterator[Point]:
    for i in range(2 * tips):
        angle, length = math.pi * i / tips, inner if i % 2 else 1.0
        yield math.sin(angle) * length, -math.cos(angle) * length


SHAPES: dict[str, Painter] = {
    "circle": _circle,
    "square": _polygon((-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)),
    "triangle": _polygon((0, -1), (0.95, 0.8), (-0.95, 0.8)),
    "diamond": _polygon((0, -1), (0.7, 0), (0, 1), (-0.7, 0)),
    "star": _polygon(*_star_points()),
    "cross": _polygon(
        (-0.3, -1), (0.3, -1), (0.3, -0.3), (1, -0.3), (1, 0.3), (0.3, 0.3),
        (0.3, 1), (-0.3, 1), (-0.3, 0.3), (-1, 0.3), (-1, -0.3), (-0.3, -0.3),
    ),
}  # fmt: skip


def _zogglewump(canvas: ImageDraw.ImageDraw, x: float, y: float, r: float, color: tuple[int, int, int]) -> None:
    """A round purple body with two horns, one large eye and a wide mouth."""
    for side in (-1, 1):
        horn = ((x + side * 0.75 * r, y - r), (x + side * 0.2 * r, y - 0.6 * r), (x + side * 0.8 * r, y - 0.3 * r))
        canvas.polygon(horn, fill=COLORS["black"])
    canvas.ellipse((x - 0.85 * r, y - 0.7 * r, x + 0.85 * r, y + r), fill=color)
    canvas.ellipse((x - 0.42 * r, y - 0.5 * r, x + 0.42 * r, y + 0.3 * r), fill=COLORS["white"])
    canvas.ellipse((x - 0.17 * r, y - 0.27 * r, x + 0.17 * r, y + 0.07 * r), fill=COLORS["black"])
    canvas.rectangle((x - 0.5 * r, y + 0.48 * r, x + 0.5 * r, y + 0.7 * r), fill=COLORS["yellow"])
