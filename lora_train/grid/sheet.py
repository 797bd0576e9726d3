"""The grid as one labelled image."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from ..run import FADED, INK, Canvas, wrap_text

MOST_PIXELS = 16_000  # on each side of the sheet
LARGEST, SMALLEST = 512, 64  # sides of a picture on it
GAP, MARGIN, LABEL, LINE = 8, 20, 190, 17


def draw_sheet(
    pictures: Sequence[Sequence[Image.Image]], columns: Sequence[str], rows: Sequence[str], title: str = ""
) -> Image.Image:
    """Pictures in rows and columns, with the names of the columns above and those of the rows on the left.

    Large pictures are scaled down, further if there are many of them.
    """
    largest = max(max(image.size) for line in pictures for image in line)
    room = (MOST_PIXELS - LABEL - 2 * MARGIN) // max(len(columns), len(rows), 1) - GAP
    scale = min(1.0, min(LARGEST, max(room, SMALLEST)) / largest)
    width = max(round(max(image.width for line in pictures for image in line) * scale), 1)
    height = max(round(max(image.height for line in pictures for image in line) * scale), 1)
    names = [wrap_text(name, max(width, 90), 4) for name in columns]
    step = max(width, 90) + GAP
    head = MARGIN + (30 if title else 0) + LINE * max((len(name) for name in names), default=0) + 6
    size = LABEL + len(columns) * step + 2 * MARGIN, head + len(rows) * (height + GAP) + MARGIN
    page = Image.new("RGB", size, "white")
    if title:
        page.paste(_words(wrap_text(title, size[0] - 2 * MARGIN, 1), size[0] - 2 * MARGIN, INK), (MARGIN, MARGIN - 6))
    for place, name in enumerate(names):
        words = _words(name, step - GAP, FADED)
        page.paste(words, (MARGIN + LABEL + place * step, head - 6 - words.height))
    for line, (name, images) in enumerate(zip(rows, pictures)):
        top = head + line * (height + GAP)
        page.paste(_words(wrap_text(name, LABEL - 16, max(height // LINE, 1)), LABEL - 8, FADED), (MARGIN, top))
        for place, image in enumerate(images):
            small = image.convert("RGB")
            if small.size != (width, height):
                small = small.resize((width, height), Image.Resampling.LANCZOS)
            page.paste(small, (MARGIN + LABEL + place * step, top))
    return page


def _words(lines: Sequence[str], width: int, color: str) -> Image.Image:
    canvas = Canvas(max(width, 1), max(LINE * len(lines), 1))
    for number, line in enumerate(lines):
        canvas.text((0, LINE * number), line, 13, color)
    return canvas.image()
