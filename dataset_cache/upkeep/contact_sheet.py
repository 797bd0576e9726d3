"""The contact sheet: one image with thumbnails of a dataset's samples, in titled groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from ...errors import CacheError
from ..read import Dataset, Sample, Samples
from ..sources import THUMBNAIL, decode_thumbnail
from .info import samples_by_bucket
from .lettering import drawable, font_for

_MARGIN, _TITLE, _LETTERS = 8, 22, 13
_PAPER, _INK = (24, 24, 24), (220, 220, 220)
_MAX_ROWS = 400  # image viewers struggle with larger sheets

ImageOf = Callable[[Sample], Image.Image]


@dataclass(frozen=True)
class _Row:
    """A title, or the samples of one row."""

    title: str = ""
    samples: tuple[int, ...] = ()

    @property
    def is_title(self) -> bool:
        return not self.samples


def contact_sheet(dataset: Dataset, columns: int = 12, side: int = 96, per_bucket: int = 48) -> Image.Image:
    """The thumbnails of each bucket, the fullest first; of a larger bucket, `per_bucket` samples evenly spaced."""
    if THUMBNAIL not in dataset.fields:
        raise CacheError(f"{dataset.path}: has no thumbnails; encode it with a thumbnail size to draw a contact sheet")
    has_thumbnail = dataset.variants(THUMBNAIL) > 0
    groups = {}
    for label, rows in samples_by_bucket(dataset).items():
        title = f"{label}: {len(rows):,} {'sample' if len(rows) == 1 else 'samples'}"
        groups[title] = evenly_spaced(rows[has_thumbnail[rows]].tolist(), per_bucket)
    return draw_sheet(dataset, groups, columns=columns, side=side)


def draw_sheet(
    dataset: Samples,
    groups: Mapping[str, Sequence[int]],
    *,
    image_of: ImageOf | None = None,
    title: str = "",
    columns: int = 12,
    side: int = 96,
) -> Image.Image:
    """The given samples below the title of their group. `image_of` replaces the thumbnail."""
    rows = list(_rows(groups, title, columns))[:_MAX_ROWS]
    width = min(columns, max((len(row.samples) for row in rows), default=1) or 1)
    cell = side + _MARGIN
    height = sum(_TITLE if row.is_title else cell for row in rows)
    lengths = (font_for(row.title, _LETTERS).getlength(drawable(row.title)) for row in rows)
    least = round(max(lengths, default=0)) + 2 * _MARGIN
    sheet = Image.new("RGB", (max(width * cell + _MARGIN, least), height + _MARGIN), _PAPER)
    pen, top = ImageDraw.Draw(sheet), _MARGIN
    for row in rows:
        if row.is_title:
            pen.text((_MARGIN, top), drawable(row.title), fill=_INK, font=font_for(row.title, _LETTERS))
            top += _TITLE
            continue
        for column, number in enumerate(row.samples):
            image = (image_of or thumbnail_of)(dataset.sample(number))
            _paste(sheet, image, (_MARGIN + column * cell, top), side)
        top += cell
    return sheet


def thumbnail_of(sample: Sample) -> Image.Image:
    data = sample.fields.get(THUMBNAIL)
    if data is None:
        raise CacheError(f"sample {sample.index} ({sample.source}): has no thumbnail")
    return decode_thumbnail(data)


def evenly_spaced(samples: Sequence[int], count: int) -> list[int]:
    """At most `count` of the samples, at equal distances."""
    if len(samples) <= count:
        return list(samples)
    return [samples[n] for n in np.linspace(0, len(samples) - 1, count).astype(int).tolist()]


def _rows(groups: Mapping[str, Sequence[int]], title: str, columns: int) -> Iterator[_Row]:
    if title:
        yield _Row(title)
    for name, samples in groups.items():
        if name:
            yield _Row(name)
        for start in range(0, len(samples), columns):
            yield _Row(samples=tuple(samples[start : start + columns]))


def _paste(sheet: Image.Image, image: Image.Image, place: tuple[int, int], side: int) -> None:
    image.thumbnail((side, side))
    spare = side - image.width, side - image.height
    sheet.paste(image, (place[0] + spare[0] // 2, place[1] + spare[1] // 2))
