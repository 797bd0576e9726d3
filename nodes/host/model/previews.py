"""Sample images during training: how they are drawn, with ComfyUI's sampler and VAE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import comfy.sample
import numpy as np
import torch
from PIL import Image
from torch import Tensor


@dataclass(frozen=True)
class PreviewSettings:
    """How sample images are drawn. Without a negative conditioning, cfg counts as 1."""

    negative: Any = None
    cfg: float = 4.0
    sampler: str = "euler"
    scheduler: str = "simple"


def sample(
    patcher: Any, conditioning: Any, shape: Sequence[int], seed: int, steps: int, settings: PreviewSettings
) -> Tensor:
    """Latents as KSampler returns them for an empty latent of this shape [B, C, (T,) H, W]."""
    latents = torch.zeros(tuple(shape))
    wanted = comfy.sample.fix_empty_latent_channels(patcher, latents)
    # The noise that KSampler draws for this seed, from a private generator: the global one stays as it is.
    noise = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(seed))
    guided = settings.negative is not None
    made = comfy.sample.sample(
        patcher, noise, steps, settings.cfg if guided else 1.0, settings.sampler, settings.scheduler,
        conditioning, settings.negative if guided else [], wanted, disable_pbar=True, seed=seed,
    )  # fmt: skip
    return made.reshape(latents.shape) if made.numel() == latents.numel() else made


def to_images(images: Tensor) -> list[Image.Image]:
    """ComfyUI's IMAGE [B, H, W, C] (video: [B, T, H, W, C], its first frame) in 0…1 → images."""
    images = images[:, 0] if images.ndim == 5 else images
    pixels = (images[..., :3].float().clamp(0, 1) * 255).round().to("cpu", torch.uint8).numpy()
    return [Image.fromarray(np.ascontiguousarray(each)) for each in pixels]
