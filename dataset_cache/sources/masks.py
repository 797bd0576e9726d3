"""Masks: where a picture's mask comes from, and how it becomes weights at the latent's spatial shape."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from PIL import Image

from ..errors import CacheError, Unusable
from . import images
from .transforms import Placement

MASK_MODES = ("none", "auto", "file", "folder", "alpha")
SUFFIX = "-masklabel"
FOLDER = "masks"
MASK_VERSION = 1  # part of every mask's key
_SAME_ASPECT = 0.02


@dataclass(frozen=True)
class Masks:
    """Where the masks of one set are. `auto` takes the first of file, folder and alpha that a picture has."""

    mode: str = "none"
    folder: str = FOLDER  # parallel to the pictures: relative to the source's folder, or absolute

    def __post_init__(self) -> None:
        if self.mode not in MASK_MODES:
            raise CacheError(f"masks: found {self.mode!r}, expected one of {', '.join(MASK_MODES)}")

    @property
    def file(self) -> bool:
        return self.mode in ("auto", "file")

    @property
    def parallel(self) -> bool:
        return self.mode in ("auto", "folder")

    @property
    def alpha(self) -> bool:
        return self.mode in ("auto", "alpha")


def is_mask(name: str) -> bool:
    """Whether a file is a picture's mask by its name, and so no picture itself."""
    return name.rpartition(".")[0].endswith(SUFFIX)


def fits(mask: tuple[int, int], picture: tuple[int, int]) -> bool:
    """Whether a mask's shape is the picture's. Another resolution is fine."""
    return abs(mask[0] * picture[1] / (mask[1] * picture[0]) - 1) <= _SAME_ASPECT


def decode_mask(data: bytes, size: tuple[int, int]) -> Image.Image:
    """A mask file as a grey picture for a picture of `size`."""
    grey = images.decode(data, background=(0, 0, 0)).rgb.convert("L")
    if not fits(grey.size, size):
        raise Unusable(f"the mask is {grey.width} × {grey.height}, the picture {size[0]} × {size[1]}: another shape")
    return grey


def render_mask(mask: Image.Image | None, placement: Placement, flip: bool, latent: tuple[int, int]) -> torch.Tensor:
    """Weights [1, h, w] in 0…1 at a latent's spatial shape, placed as the picture is; without a mask, all ones."""
    if mask is None:
        return torch.ones(1, *latent, dtype=torch.float16)
    pixels = images.render_grey(mask, placement, flip)
    return torch.nn.functional.adaptive_avg_pool2d(pixels[None], latent).to(torch.float16)
