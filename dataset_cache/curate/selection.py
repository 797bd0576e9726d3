"""Which images of a folder are shown, and in which order; their tags, words and buckets, counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...errors import CacheError
from ...setting import closest_name
from ..sources import Transform, bucket_sizes, folder_repeats, normal_form, place_image
from .caption_edits import tag_form, tags_of
from .source_folder import FolderImage, FolderView

IMAGE_ORDERS = ("name", "size", "bytes", "caption length", "date", "bucket", "repeats", "similarity")
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


@dataclass(frozen=True)
class ImageFilter:
    """What an image must be to be shown. None: either. Words and tags match in any case."""

    words: str = ""  # each of them is in the caption or the name
    tag: str = ""
    bucket: str = ""  # such as 1024×1024
    captioned: bool | None = None
    excluded: bool | None = None
    masked: bool | None = None
    problem: bool | None = None
    alike: bool | None = None  # whether it looks like another one


@dataclass(frozen=True)
class SubfolderCount:
    """Images of one subfolder, "" for the folder itself. `repeats` are those in its name; `samples` are per epoch."""

    folder: str
    images: int
    repeats: int
    samples: int


def select_images(
    images: Iterable[FolderImage],
    wanted: ImageFilter,
    *,
    transform: Transform | None = None,
    groups: Sequence[Sequence[str]] = (),
) -> list[FolderImage]:
    """The images that the filter lets through, in their order. `groups` of look-alikes are needed for `alike`."""
    alike = {name for group in groups for name in group}
    tests = list(_tests(wanted, transform or Transform(), alike))
    return [image for image in images if all(test(image) for test in tests)]


def sort_images(
    images: Sequence[FolderImage],
    order: str,
    *,
    descending: bool = False,
    transform: Transform | None = None,
    groups: Sequence[Sequence[str]] = (),
) -> list[FolderImage]:
    """The images in this order; equal ones in the order of their names. `groups` are needed for "similarity"."""
    if order not in IMAGE_ORDERS:
        hint = closest_name(order, IMAGE_ORDERS) or f"; expected one of {', '.join(IMAGE_ORDERS)}"
        raise CacheError(f"{order} is not an order{hint}")
    transform = transform or Transform()
    place = {name: number for number, group in enumerate(groups) for name in group}
    keys: dict[str, Callable[[FolderImage], Any]] = {
        "size": lambda image: image.width * image.height,
        "bytes": lambda image: image.bytes,
        "caption length": lambda image: len(image.caption.text),
        "date": lambda image: image.modified,
        "bucket": lambda image: bucket_size_of(image, transform),
        "repeats": lambda image: image.repeats,
        "similarity": lambda image: place.get(image.name, len(groups)),
    }
    if order == "name":
        return list(reversed(images)) if descending else list(images)
    return sorted(images, key=keys[order], reverse=descending)


def bucket_of(image: FolderImage, transform: Transform) -> str:
    """The bucket that an image falls into, such as 1024×768; of several resolutions, the first. "" if in none."""
    width, height = bucket_size_of(image, transform)
    return f"{width}×{height}" if width else ""


def crop_of(image: FolderImage, transform: Transform) -> list[float] | None:
    """What its bucket keeps of an image: left, top, right and bottom as shares of its sides.

    None if it is in no bucket, or cropped at random, which depends on the content of the file.
    """
    target, size = bucket_size_of(image, transform), (image.width, image.height)
    if not all(target) or transform.crop == "random":
        return None
    left, top, right, bottom = place_image(size, target, transform, b"").box(*size)
    return [left / size[0], top / size[1], right / size[0], bottom / size[1]]


def bucket_size_of(image: FolderImage, transform: Transform) -> tuple[int, int]:
    return _bucket(image.width, image.height, transform) if image.width else (0, 0)


def count_buckets(images: Iterable[FolderImage], transform: Transform | None = None) -> dict[str, int]:
    """Images by bucket, the fullest first."""
    used = transform or Transform()
    return _counted(Counter(bucket_of(image, used) for image in images if not image.problem))


def count_tags(images: Iterable[FolderImage]) -> dict[str, int]:
    """Tags by the number of images that have them, the most frequent first. The first spelling counts."""
    return _count(images, tags_of, tag_form)


def count_words(images: Iterable[FolderImage]) -> dict[str, int]:
    """Words by the number of images that have them, the most frequent first."""
    return _count(images, _WORD.findall, lambda word: normal_form(word).casefold())


def count_caption_lengths(images: Iterable[FolderImage]) -> dict[int, int]:
    """Images by the number of words in their first caption line, the shortest first."""
    return dict(sorted(Counter(len(_WORD.findall(i.lines[0])) if i.lines else 0 for i in images).items()))


def count_subfolders(view: FolderView) -> list[SubfolderCount]:
    """What a run sees of each subfolder: images that are used, and how often. A name such as 10_subject repeats."""
    used: dict[str, list[int]] = {}
    for image in view.images:
        if not image.excluded and not image.problem:
            used.setdefault(image.name.rpartition("/")[0], []).append(image.repeats)
    rows = []
    for folder, repeats in sorted(used.items()):
        factor = folder_repeats((view.root / folder).name)
        rows.append(SubfolderCount(folder, len(repeats), factor, factor * sum(repeats)))
    return rows


def _count(
    images: Iterable[FolderImage], parts_of: Callable[[str], Collection[str]], form: Callable[[str], str]
) -> dict[str, int]:
    counts: Counter[str] = Counter()
    spelling: dict[str, str] = {}
    forms: dict[str, str] = {}  # each distinct part is folded once
    for image in images:
        found = set()
        for line in image.lines:
            for part in parts_of(line):
                if part not in forms:
                    forms[part] = form(part)
                    spelling.setdefault(forms[part], part)
                found.add(forms[part])
        counts.update(found)
    return _counted({spelling[part]: count for part, count in counts.items()})


def _counted(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _tests(wanted: ImageFilter, transform: Transform, alike: set[str]) -> Iterable[Callable[[FolderImage], bool]]:
    if wanted.words.strip():
        words = [tag_form(word) for word in wanted.words.split()]
        yield lambda image: _has_words(image, words)
    if wanted.tag.strip():
        tag = tag_form(wanted.tag)
        yield lambda image: any(tag == tag_form(found) for line in image.lines for found in tags_of(line))
    if wanted.bucket:
        yield lambda image: bucket_of(image, transform) == wanted.bucket
    if wanted.captioned is not None:
        yield lambda image: bool(image.lines) == wanted.captioned
    if wanted.excluded is not None:
        yield lambda image: image.excluded == wanted.excluded
    if wanted.masked is not None:
        yield lambda image: image.masked == wanted.masked
    if wanted.problem is not None:
        yield lambda image: bool(image.problem) == wanted.problem
    if wanted.alike is not None:
        yield lambda image: (image.name in alike) == wanted.alike


def _has_words(image: FolderImage, words: Sequence[str]) -> bool:
    text = tag_form(f"{image.name}\n{image.caption.text}")
    return all(word in text for word in words)


@lru_cache(1 << 16)
def _bucket(width: int, height: int, transform: Transform) -> tuple[int, int]:
    return next(iter(bucket_sizes(width, height, transform)), (0, 0))
