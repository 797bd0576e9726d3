"""The reference autoencoder: an orthonormal cosine transform of 8×8 tiles. It needs no weights and no training."""

from __future__ import annotations

import math
from functools import cache

import torch
from PIL import Image
from torch import Tensor

from ..lora_train import TrainError

VERSION = 1
DOWNSCALE = 8

# Vertical and horizontal frequencies whose sum is below this are kept of each tile and colour.
ORDER = 5
FREQUENCIES = tuple((v, h) for v in range(ORDER) for h in range(ORDER - v))
CHANNELS = 3 * len(FREQUENCIES)  # 45: every frequency of luma, then of the two axes of colour

# What a model divides latents by, for each order of frequency and each axis of colour. Fine detail is kept smaller
# than it would be at unit variance: a short training should care for shapes and colours first.
SPREADS = (1.7, 0.7, 0.48, 0.36, 0.3)
COLOUR_SPREADS = (1.0, 1.0, 0.7)

# Luma, and two axes of colour; orthonormal, so that distances between latents are distances between pictures.
COLOURS = (
    (3**-0.5, 3**-0.5, 3**-0.5),
    (2**-0.5, 0.0, -(2**-0.5)),
    (6**-0.5, -2 * 6**-0.5, 6**-0.5),
)


def encode(image: Tensor) -> Tensor:
    """[H, W, 3] in 0..1 → latent [1, C, H/8, W/8]: the mode, as there is nothing random in it."""
    height, width, channels = image.shape
    if channels != 3 or height % DOWNSCALE or width % DOWNSCALE:
        raise TrainError(
            f"image: found {tuple(image.shape)}, expected height and width in steps of {DOWNSCALE}, 3 colours"
        )
    tiles = (image.float() - 0.5).reshape(height // DOWNSCALE, DOWNSCALE, width // DOWNSCALE, DOWNSCALE, 3)
    return torch.einsum("hawbk,cabk->chw", tiles, _basis())[None].contiguous()


def decode(latents: Tensor) -> Tensor:
    """Latents [B, C, h, w] → images [B, 8h, 8w, 3] in 0..1."""
    batch, _, height, width = latents.shape
    tiles = torch.einsum("nchw,cabk->nhawbk", latents.float(), _basis().to(latents.device))
    return (tiles.reshape(batch, height * DOWNSCALE, width * DOWNSCALE, 3) + 0.5).clamp(0, 1)


def spread(device: torch.device | str = "cpu") -> Tensor:
    """[1, C, 1, 1] the scale between latents and what a model is given."""
    each = [colour * SPREADS[v + h] for colour in COLOUR_SPREADS for v, h in FREQUENCIES]
    return torch.tensor(each, device=device).reshape(1, CHANNELS, 1, 1)


@cache
def _basis() -> Tensor:
    """[C, 8, 8, 3] the orthonormal pictures that a tile is a sum of."""
    place, rate = torch.arange(DOWNSCALE) + 0.5, torch.arange(DOWNSCALE)[:, None]
    cosines = torch.cos(math.pi / DOWNSCALE * place * rate) * math.sqrt(2 / DOWNSCALE)
    cosines[0] /= math.sqrt(2)
    waves = torch.stack([torch.outer(cosines[v], cosines[h]) for v, h in FREQUENCIES])
    return torch.einsum("kc,fab->kfabc", torch.tensor(COLOURS), waves).flatten(0, 1)


def decode_pictures(latents: torch.Tensor) -> list[Image.Image]:
    """Latents of the reference VAE as pictures."""
    pixels = (decode(latents) * 255).round().to(torch.uint8).cpu()
    return [Image.fromarray(one.numpy()) for one in pixels]
