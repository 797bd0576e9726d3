"""Contact sheet: a picture of a dataset, its thumbnails by bucket."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageDraw

from ..errors import CacheError
from ..read import Bucket, Cache
from ..sources import THUMBNAIL, decode_thumbnail

_MARGIN, _TITLE = 8, 18
_PAPER, _INK = (24, 24, 24), (220, 220, 220)
_MAX_ROWS = 400  # of a sheet: more than a picture viewer likes to open


def contact_sheet(cache: Cache, columns: int = 12, side: int = 96, per_bucket: int = 48) -> Image.Image:
    """Thumbnails of each bucket, the fullest first; of a bucket with more, samples at equal distances."""
    if THUMBNAIL not in cache.fields:
        raise CacheError(f"{cache.path}: has no thumbnails; encode it with a thumbnail size to draw a contact sheet")
    buckets = sorted(cache.buckets().items(), key=lambda item: -len(item[1]))
    rows = list(_rows(cache, buckets, columns, per_bucket))[:_MAX_ROWS]
    cell = side + _MARGIN
    height = sum(_TITLE if isinstance(row, str) else cell for row in rows)
    sheet = Image.new("RGB", (columns * cell + _MARGIN, height + _MARGIN), _PAPER)
    pen, top = ImageDraw.Draw(sheet), _MARGIN
    for row in rows:
        if isinstance(row, str):
            pen.text((_MARGIN, top), row, fill=_INK)
            top += _TITLE
            continue
        for column, sample in enumerate(row):
            _paste(sheet, cache, sample, (_MARGIN + column * cell, top), side)
        top += cell
    return sheet


def _rows(
    cache: Cache, buckets: list[tuple[Bucket, np.ndarray]], columns: int, per_bucket: int
) -> Iterator[str | list[int]]:
    """A title for each bucket, then the samples of each row below it."""
    with_thumbnail = cache.variants(THUMBNAIL) > 0
    for bucket, samples in buckets:
        noun = "sample" if len(samples) == 1 else "samples"
        yield f"{bucket}: {len(samples):,} {noun}".replace("×", "x")  # which Pillow's own font lacks
        drawn = samples[with_thumbnail[samples]]
        if len(drawn) > per_bucket:
            drawn = drawn[np.linspace(0, len(drawn) - 1, per_bucket).astype(np.int64)]
        for start in range(0, len(drawn), columns):
            yield drawn[start : start + columns].tolist()


def _paste(sheet: Image.Image, cache: Cache, sample: int, place: tuple[int, int], side: int) -> None:
    image = decode_thumbnail(cache.sample(sample).realize().fields[THUMBNAIL])
    image.thumbnail((side, side))
    spare = side - image.width, side - image.height
    sheet.paste(image, (place[0] + spare[0] // 2, place[1] + spare[1] // 2))
