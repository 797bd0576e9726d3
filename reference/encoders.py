"""The reference VAE and text encoder as encoders of datasets. There is nothing to load, so a lease costs nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from . import text, vae


class ReferenceImageEncoder:
    """Images [H, W, 3] in 0..1 → latent dicts."""

    identity = f"streamcache-reference-vae v{vae.VERSION} order {vae.ORDER} fp32"
    downscale = vae.DOWNSCALE
    channels = vae.CHANNELS

    def lease(self) -> AbstractContextManager[None]:
        return nullcontext()

    def encode(self, items: list[Tensor]) -> list[dict[str, Tensor]]:
        return [{"samples": vae.encode(image)} for image in items]


class ReferenceTextEncoder:
    """Captions → conditionings."""

    identity = f"streamcache-reference-text v{text.VERSION} width {text.WIDTH} fp32"

    def lease(self) -> AbstractContextManager[None]:
        return nullcontext()

    def encode(self, items: list[str]) -> list[list[list[Any]]]:
        return [text.encode(caption) for caption in items]
