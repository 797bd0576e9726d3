"""Masks: where an image's mask comes from, and how it becomes loss weights at the latent's size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from PIL import Image

from ...errors import Unusable
from ...setting import check_settings, declare
from . import images
from .images import Picture
from .transforms import Placement

MASK_MODES = ("none", "auto", "file", "folder", "alpha")
SUFFIX = "-masklabel"
FOLDER = "masks"
MASK_VERSION = 1  # part of every mask's key: raise it when the same file would give other weights
_SAME_ASPECT = 0.02


@dataclass(frozen=True)
class Masks:
    """Where the masks of one set are. `auto` uses the first of file, folder and alpha that an image has."""

    mode: str = declare(
        "none",
        "Masks for masked loss: name-masklabel.png files, a folder named masks, the alpha channel, or (auto) the "
        "first of these that an image has",
        "masks",
        name="masks",
        choices=MASK_MODES,
    )
    folder: str = declare(
        FOLDER,
        "Name of the folders of masks, relative to the source's folder or to the images",
        "masks",
        name="mask_folder",
    )

    def __post_init__(self) -> None:
        check_settings(self)

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
    """Whether a file is a mask by its name, and not a training image."""
    return name.rpartition(".")[0].lower().endswith(SUFFIX)


def fits(mask: tuple[int, int], image: tuple[int, int]) -> bool:
    """Whether a mask has the aspect ratio of its image. Its resolution may differ."""
    return abs(mask[0] * image[1] / (mask[1] * image[0]) - 1) <= _SAME_ASPECT


def gray_mask(mask: Picture, size: tuple[int, int]) -> Image.Image:
    """A decoded mask file as a grayscale mask for an image of `size`."""
    gray = mask.rgb.convert("L")
    if not fits(gray.size, size):
        found, expected = f"{gray.width}×{gray.height}", f"{size[0]}×{size[1]}"
        raise Unusable(f"the mask is {found}, but the image {expected}: the aspect ratios differ")
    return gray


def render_mask(mask: Image.Image | None, placement: Placement, flip: bool, latent: tuple[int, int]) -> torch.Tensor:
    """Weights [1, h, w] in 0…1 at the latent's size, placed like the image; all ones without a mask."""
    if mask is None:
        return torch.ones(1, *latent, dtype=torch.float16)
    pixels = images.render_gray(mask, placement, flip)
    return torch.nn.functional.adaptive_avg_pool2d(pixels[None], latent).to(torch.float16)
