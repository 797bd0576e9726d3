"""Transforms: which bucket an image falls into, and how it is resized and cropped. Numbers only, no pixels."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product

from ...errors import CacheError
from ...setting import check_settings, declare

CROPS = ("centre", "random", "none")
BUCKET_STEPS = (8, 16, 32, 64)
_LARGEST = 16384  # side of a square; a larger one is probably a typo


@dataclass(frozen=True)
class Transform:
    """How the images of one set are resized. Every resolution gives each image a sample of its own."""

    resolutions: tuple[int, ...] = declare(
        (1024,),
        "Training resolution: a bucket has at most the area of a square of this side",
        "images",
        name="resolution",
        old_names=("resolutions",),
        high=_LARGEST,
        shown=(64, 8192),
        step=8,
    )
    step: int = declare(
        64, "Bucket sides are multiples of this (in pixels)", "images", choices=tuple(map(str, BUCKET_STEPS))
    )
    min_aspect: float = declare(
        0.5, "Smallest bucket aspect ratio (width / height)", "images", above=0, high=1, shown=(0.05, 1.0), step=0.05
    )
    max_aspect: float = declare(
        2.0, "Largest bucket aspect ratio (width / height)", "images", low=1, shown=(1.0, 20.0), step=0.05
    )
    upscale: bool = declare(
        True, "Upscale images smaller than the resolution. Off: put them in smaller buckets", "images"
    )
    crop: str = declare(
        "centre",
        "How to fit the bucket: crop to the center, crop at a fixed random position, or stretch without cropping",
        "images",
        choices=CROPS,
    )
    flip: bool = declare(False, "Also encode each image mirrored; every epoch uses one of the two", "images")
    seed: int = declare(0, "Seed of random crops", "images", name="crop_seed", shown=(0, 2**31 - 1))

    def __post_init__(self) -> None:
        check_settings(self)
        shown = ", ".join(map(str, self.resolutions)) or "none"
        if not self.resolutions or min(self.resolutions) < self.step:
            raise CacheError(f"resolution = {shown}: expected at least the step, {self.step}")
        if len(set(self.resolutions)) != len(self.resolutions):
            raise CacheError(f"resolution = {shown}: expected each resolution once")


@dataclass(frozen=True)
class Placement:
    """Where an image's pixels go: resized to `resized`, then cropped at (left, top) to (width, height)."""

    width: int
    height: int
    resized: tuple[int, int]
    left: int
    top: int

    @property
    def crop(self) -> tuple[int, int, int, int]:
        """Left, top, width and height in pixels of the resized image, as size conditioning expects them."""
        return self.left, self.top, self.width, self.height

    def box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """The same crop in pixels of an image of (width, height), so that one resize does both."""
        across, down = width / self.resized[0], height / self.resized[1]
        right = min(float(width), (self.left + self.width) * across)
        bottom = min(float(height), (self.top + self.height) * down)
        return self.left * across, self.top * down, right, bottom

    def identity(self) -> list[int]:
        """The numbers that decide the pixels; part of cache keys."""
        return [self.width, self.height, *self.resized, self.left, self.top]


def bucket_size(width: int, height: int, resolution: int, transform: Transform) -> tuple[int, int] | None:
    """The size an image of (width, height) is encoded at; None if it is too small and must not be upscaled."""
    aspect = min(max(width / height, transform.min_aspect), transform.max_aspect)
    size = _fit_area(aspect, resolution * resolution, transform.step)
    if transform.upscale or (size[0] <= width and size[1] <= height):
        return size
    return _fit_inside(width, height, transform)


def place_image(size: tuple[int, int], target: tuple[int, int], transform: Transform, content: bytes) -> Placement:
    """Fit an image of `size` into `target`. A random crop is drawn from (seed, content), so it stays the same."""
    width, height = target
    if transform.crop == "none":
        return Placement(width, height, target, 0, 0)
    scale = max(width / size[0], height / size[1])
    resized = max(width, round(size[0] * scale)), max(height, round(size[1] * scale))
    spare = resized[0] - width, resized[1] - height
    if transform.crop == "centre":
        return Placement(width, height, resized, spare[0] // 2, spare[1] // 2)
    draw = random.Random(blake2b(content, key=str(transform.seed).encode(), digest_size=16).digest())
    return Placement(width, height, resized, draw.randint(0, spare[0]), draw.randint(0, spare[1]))


def bucket_sizes(width: int, height: int, transform: Transform) -> list[tuple[int, int]]:
    """The sizes of all samples of one image, without duplicates: small images that stay small have only one."""
    found = (bucket_size(width, height, side, transform) for side in transform.resolutions)
    return list(dict.fromkeys(size for size in found if size is not None))


def _fit_area(aspect: float, area: int, step: int) -> tuple[int, int]:
    # Computed for landscape and rotated for portrait, so that the two mirror each other.
    longer = max(aspect, 1 / aspect)
    sides = math.sqrt(area * longer), math.sqrt(area / longer)
    ways = product(*[(max(step, int(side // step) * step), (int(side // step) + 1) * step) for side in sides])
    fitting = [(long, short) for long, short in ways if long * short <= area] or [(step, step)]
    long, short = min(fitting, key=lambda s: (round(abs(math.log(s[0] / s[1] / longer)), 9), -s[0] * s[1]))
    return (long, short) if aspect >= 1 else (short, long)


def _fit_inside(width: int, height: int, transform: Transform) -> tuple[int, int] | None:
    step = transform.step
    inside = min(width, height * transform.max_aspect), min(height, width / transform.min_aspect)
    size = int(inside[0] // step) * step, int(inside[1] // step) * step
    return size if all(size) else None
