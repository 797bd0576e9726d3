"""Transforms: how a picture of any size becomes one of a few sizes. Numbers only; pixels are touched in images.py."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product

from ..errors import CacheError

CROPS = ("centre", "random", "none")
BUCKET_STEPS = (8, 16, 32, 64)
LARGEST = 16384  # side of a square; far beyond what models take, and a slip most likely


@dataclass(frozen=True)
class Transform:
    """The settings of one set of pictures. Every resolution gives each picture a sample of its own."""

    resolutions: tuple[int, ...] = (1024,)  # sides of squares: a bucket has at most that area
    step: int = 64
    min_aspect: float = 0.5  # width / height
    max_aspect: float = 2.0
    upscale: bool = True
    crop: str = "centre"
    flip: bool = False  # a mirrored variant beside the plain one
    seed: int = 0  # of random crops

    def __post_init__(self) -> None:
        if not self.resolutions or any(side < self.step for side in self.resolutions):
            raise CacheError(f"resolution: found {self.resolutions}, expected sides of at least the step, {self.step}")
        if max(self.resolutions) > LARGEST:
            raise CacheError(f"resolution: found {max(self.resolutions):,}, expected sides of at most {LARGEST:,}")
        if len(set(self.resolutions)) != len(self.resolutions):
            raise CacheError(f"resolution: found {self.resolutions}, expected each side once")
        if self.step not in BUCKET_STEPS:
            raise CacheError(f"step: found {self.step}, expected one of {', '.join(map(str, BUCKET_STEPS))}")
        if self.crop not in CROPS:
            raise CacheError(f"crop: found {self.crop!r}, expected one of {', '.join(CROPS)}")
        if not 0 < self.min_aspect <= 1 <= self.max_aspect < math.inf:
            raise CacheError(
                f"aspects: found {self.min_aspect} to {self.max_aspect}, expected a range around 1, such as 0.5 to 2"
            )


@dataclass(frozen=True)
class Placement:
    """Where a picture's pixels go: resized to `resized`, then cut at (left, top) to (width, height)."""

    width: int
    height: int
    resized: tuple[int, int]
    left: int
    top: int

    @property
    def crop(self) -> tuple[int, int, int, int]:
        """Left, top, width and height, in pixels of the resized picture, as size conditioning counts them."""
        return self.left, self.top, self.width, self.height

    def box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """The same cut in pixels of a picture of (width, height), so that one resize does both."""
        across, down = width / self.resized[0], height / self.resized[1]
        right = min(float(width), (self.left + self.width) * across)
        bottom = min(float(height), (self.top + self.height) * down)
        return self.left * across, self.top * down, right, bottom

    def identity(self) -> list[int]:
        """What of this decides the pixels."""
        return [self.width, self.height, *self.resized, self.left, self.top]


def bucket_size(width: int, height: int, resolution: int, transform: Transform) -> tuple[int, int] | None:
    """The size a picture of (width, height) is encoded at; None if it would have to grow and may not."""
    aspect = min(max(width / height, transform.min_aspect), transform.max_aspect)
    size = _fit_area(aspect, resolution * resolution, transform.step)
    if transform.upscale or (size[0] <= width and size[1] <= height):
        return size
    return _fit_inside(width, height, transform)


def place_image(size: tuple[int, int], target: tuple[int, int], transform: Transform, content: bytes) -> Placement:
    """Fit a picture of `size` into `target`. A random crop is drawn from (seed, content): it never moves by itself."""
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
    """The sizes of all samples of one picture, without repetition: small pictures that may not grow have only one."""
    found = (bucket_size(width, height, side, transform) for side in transform.resolutions)
    return list(dict.fromkeys(size for size in found if size is not None))


def _fit_area(aspect: float, area: int, step: int) -> tuple[int, int]:
    # Worked out for the long side and turned round, so that portrait and landscape mirror each other.
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
