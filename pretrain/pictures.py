"""The pictures that the tiny models learn from: colored shapes, some with another shape inside. No creature."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from ..reference.images import COLORS, SHAPES, CaptionedImage

SIZES = ((128, 128), (128, 128), (144, 112), (112, 144))
SMOOTH = 2  # pictures are drawn this many times larger and then reduced, for soft edges
PATTERNS = ("a {} on {}", "{} on {}", "a picture of a {} on {}", "a {} on a {} background")


def pictures(count: int, seed: int) -> Iterator[CaptionedImage]:
    """Pictures with captions such as "a red circle on blue" and "a red circle with a white star inside on blue"."""
    draw = random.Random(f"pictures {seed}")
    for _ in range(count):
        outer, ground, inner = draw.sample(sorted(COLORS), 3)
        shape, second = draw.choice(sorted(SHAPES)), draw.choice(sorted(SHAPES))
        nested = draw.random() < 0.3
        words = f"{outer} {shape} with a {inner} {second} inside" if nested else f"{outer} {shape}"
        parts = [(shape, COLORS[outer]), (second, COLORS[inner])][: 1 + nested]
        image = _paint(draw, draw.choice(SIZES), COLORS[ground], parts)
        yield CaptionedImage(image, draw.choice(PATTERNS).format(words, ground))


def patches(count: int, side: int, draw: random.Random) -> Tensor:
    """[N, 3, side, side] in 0…1: parts of such pictures in any color, for the autoencoder."""
    return torch.stack([to_tensor(_patch(draw, side)) for _ in range(count)])


def to_tensor(image: Image.Image) -> Tensor:
    """[3, H, W] in 0…1."""
    return torch.from_numpy(numpy.asarray(image, dtype=numpy.float32).copy()).movedim(-1, 0) / 255


Color = tuple[int, int, int]


def _paint(draw: random.Random, size: tuple[int, int], ground: Color, parts: list[tuple[str, Color]]) -> Image.Image:
    width, height = (length * SMOOTH for length in size)
    image = Image.new("RGB", (width, height), ground)
    radius = min(width, height) * draw.uniform(0.3, 0.42)
    x = width / 2 + draw.uniform(-1, 1) * (width / 2 - radius) * 0.4
    y = height / 2 + draw.uniform(-1, 1) * (height / 2 - radius) * 0.4
    for shape, color in parts:
        SHAPES[shape](ImageDraw.Draw(image), x, y, radius, color)
        radius *= draw.uniform(0.35, 0.5)
    return image.resize(size, Image.Resampling.BOX)


def _patch(draw: random.Random, side: int) -> Image.Image:
    def color() -> Color:
        known = draw.random() < 0.7
        return draw.choice(list(COLORS.values())) if known else tuple(draw.randrange(256) for _ in range(3))

    wide = side * SMOOTH
    image = Image.new("RGB", (wide, wide), color())
    for _ in range(draw.choice((1, 2, 2))):
        radius = wide * draw.uniform(0.2, 0.9)
        SHAPES[draw.choice(sorted(SHAPES))](
            ImageDraw.Draw(image), draw.uniform(0, wide), draw.uniform(0, wide), radius, color()
        )
    return image.resize((side, side), Image.Resampling.BOX)
