"""A canvas: lines, areas and text in smooth strokes with Pillow alone. It draws large and scales down once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

OVERSIZE = 3  # drawn pixels per shown pixel, in each direction

INK = "#1f2937"
FADED = "#64748b"
RULE = "#e5e9f0"
PAPER = "#ffffff"
BLUE = "#2563eb"
PALE_BLUE = "#bfd3fb"
ORANGE = "#ea580c"
GREEN = "#0d9488"

Point = tuple[float, float]


class Canvas:
    """Coordinates are shown pixels, from the top left."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._image = Image.new("RGB", (width * OVERSIZE, height * OVERSIZE), PAPER)
        self._draw = ImageDraw.Draw(self._image)

    def line(self, points: Sequence[Point], color: str, width: float = 1.0) -> None:
        """A stroke through the points, with round joints and ends."""
        scaled = [(x * OVERSIZE, y * OVERSIZE) for x, y in points]
        thick = max(1, round(width * OVERSIZE))
        self._draw.line(scaled, fill=color, width=thick, joint="curve")
        if width > 1 and scaled:
            for x, y in (scaled[0], scaled[-1]):
                self._draw.ellipse([x - thick / 2, y - thick / 2, x + thick / 2, y + thick / 2], fill=color)

    def dot(self, at: Point, color: str, radius: float = 3.5) -> None:
        """A disc with a rim of paper, so that it stands out on a line."""
        for size, fill in ((radius + 1.5, PAPER), (radius, color)):
            box = [(at[0] - size), (at[1] - size), (at[0] + size), (at[1] + size)]
            self._draw.ellipse([value * OVERSIZE for value in box], fill=fill)

    def box(self, left: float, top: float, right: float, bottom: float, color: str, radius: float = 0.0) -> None:
        """A filled rectangle; one narrower than a pixel is still seen."""
        right, bottom = max(right, left + 1 / OVERSIZE), max(bottom, top + 1 / OVERSIZE)
        radius = min(radius, (right - left) / 2, (bottom - top) / 2)
        corners = [value * OVERSIZE for value in (left, top, right, bottom)]
        self._draw.rounded_rectangle(corners, radius=radius * OVERSIZE, fill=color)

    def text(self, at: Point, words: str, size: int = 13, color: str = INK, anchor: str = "la") -> None:
        """`anchor` is Pillow's: l m r across, a m s up and down."""
        x, y = at[0] * OVERSIZE, at[1] * OVERSIZE
        self._draw.text((x, y), _drawable(words), fill=color, font=_font(size * OVERSIZE), anchor=anchor)

    def image(self) -> Image.Image:
        """What was drawn, at its shown size."""
        return self._image.resize((self.width, self.height), Image.Resampling.BOX)


def text_width(words: str, size: int = 13) -> float:
    """Shown pixels that the words take."""
    return _font(size * OVERSIZE).getlength(_drawable(words)) / OVERSIZE


def _drawable(words: str) -> str:
    # Pillow's own font has no multiplication sign.
    return words.replace("×", "x")


@lru_cache(maxsize=32)
def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)
