"""The reference VAE and text encoder, as encoders of datasets. Neither has weights to load or to train.

The VAE is an orthonormal cosine transform of 8×8 tiles. The text encoder gives every word a fixed vector and mixes it
with that of the word before.
"""

from __future__ import annotations

import hashlib
import math
import re
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ..lora_train import TrainError

IMAGE_VERSION = TEXT_VERSION = 1
DOWNSCALE = 8

# Vertical and horizontal frequencies with a sum below this are kept per tile and color axis.
ORDER = 5
FREQUENCIES = tuple((v, h) for v in range(ORDER) for h in range(ORDER - v))
CHANNELS = 3 * len(FREQUENCIES)  # 45: every frequency of luma, then of the two color axes

# The model's input is the latents divided by these, per order of frequency and per color axis. Fine detail gets less
# than unit variance: a short training should learn shapes and colors first.
SPREADS = (1.7, 0.7, 0.48, 0.36, 0.3)
COLOR_SPREADS = (1.0, 1.0, 0.7)

# Luma and two color axes; orthonormal, so that distances between latents are distances between images.
COLOR_AXES = (
    (3**-0.5, 3**-0.5, 3**-0.5),
    (2**-0.5, 0.0, -(2**-0.5)),
    (6**-0.5, -2 * 6**-0.5, 6**-0.5),
)

TEXT_WIDTH = 64
TOKEN_STEP = 8  # token counts are multiples of this, so that captions of similar length stack
PREVIOUS_WORD = 0.5  # weight of the word before: "on blue" differs from "blue circle"


class ReferenceImageEncoder:
    """Images [H, W, 3] in 0..1 → latent dicts."""

    identity = f"streamcache-reference-vae v{IMAGE_VERSION} order {ORDER} fp32"
    downscale = DOWNSCALE
    channels = CHANNELS

    def lease(self) -> AbstractContextManager[None]:
        return nullcontext()

    def encode(self, items: list[Tensor]) -> list[dict[str, Tensor]]:
        return [{"samples": encode_image(image)} for image in items]


class ReferenceTextEncoder:
    """Captions → conditionings."""

    identity = f"streamcache-reference-text v{TEXT_VERSION} width {TEXT_WIDTH} fp32"

    def lease(self) -> AbstractContextManager[None]:
        return nullcontext()

    def encode(self, items: list[str]) -> list[list[list[Any]]]:
        return [encode_caption(caption) for caption in items]


def encode_image(image: Tensor) -> Tensor:
    """[H, W, 3] in 0..1 → latent [1, C, H/8, W/8]. Deterministic."""
    height, width, channels = image.shape
    if channels != 3 or height % DOWNSCALE or width % DOWNSCALE:
        raise TrainError(
            f"image: found shape {tuple(image.shape)}, expected height and width in multiples of {DOWNSCALE} "
            "and 3 channels"
        )
    tiles = (image.float() - 0.5).reshape(height // DOWNSCALE, DOWNSCALE, width // DOWNSCALE, DOWNSCALE, 3)
    return torch.einsum("hawbk,cabk->chw", tiles, _basis())[None].contiguous()


def decode_latents(latents: Tensor) -> Tensor:
    """Latents [B, C, h, w] → pixels [B, 8h, 8w, 3] in 0..1."""
    batch, _, height, width = latents.shape
    tiles = torch.einsum("nchw,cabk->nhawbk", latents.float(), _basis().to(latents.device))
    return (tiles.reshape(batch, height * DOWNSCALE, width * DOWNSCALE, 3) + 0.5).clamp(0, 1)


def decode_images(latents: Tensor) -> list[Image.Image]:
    """Latents [B, C, h, w] → images."""
    pixels = (decode_latents(latents) * 255).round().to(torch.uint8).cpu()
    return [Image.fromarray(one.numpy()) for one in pixels]


@cache
def latent_scale(device: torch.device | str = "cpu") -> Tensor:
    """[1, C, 1, 1]: the model's input is the latents divided by this."""
    each = [color * SPREADS[v + h] for color in COLOR_SPREADS for v, h in FREQUENCIES]
    return torch.tensor(each, device=device).reshape(1, CHANNELS, 1, 1)


def encode_caption(caption: str) -> list[list[Any]]:
    """A conditioning [[tokens [1, T, 64], {"pooled_output": [1, 64]}]]; token rows of zeros are padding."""
    words = ["<start>", *re.findall(r"\w+|[^\w\s]", caption.lower())]
    vectors = torch.stack([word_vector(word) for word in words])
    vectors[1:] += PREVIOUS_WORD * vectors[:-1].roll(1, dims=-1)  # rolled: the word before differs from the word itself
    tokens = torch.zeros(1, -(-len(words) // TOKEN_STEP) * TOKEN_STEP, TEXT_WIDTH)
    tokens[0, : len(words)] = vectors
    pooled = vectors.sum(0, keepdim=True) / len(words) ** 0.5
    return [[tokens, {"pooled_output": pooled}]]


@lru_cache(maxsize=65536)
def word_vector(word: str) -> Tensor:
    """[64] of unit variance, derived from the word's letters alone."""
    seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=7).digest(), "little")
    return torch.randn(TEXT_WIDTH, generator=torch.Generator().manual_seed(seed))


@cache
def _basis() -> Tensor:
    """[C, 8, 8, 3]: the orthonormal patterns that add up to a tile."""
    place, rate = torch.arange(DOWNSCALE) + 0.5, torch.arange(DOWNSCALE)[:, None]
    cosines = torch.cos(math.pi / DOWNSCALE * place * rate) * math.sqrt(2 / DOWNSCALE)
    cosines[0] /= math.sqrt(2)
    waves = torch.stack([torch.outer(cosines[v], cosines[h]) for v, h in FREQUENCIES])
    return torch.einsum("kc,fab->kfabc", torch.tensor(COLOR_AXES), waves).flatten(0, 1)
