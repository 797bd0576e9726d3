"""Latent spaces: how the numbers that a trainer's cache contains become those of ComfyUI's LATENT, which are unscaled.

A VAE's output is scaled before a model sees it, by one factor and shift, or by mean and deviation of each channel.
ComfyUI does that when it samples or trains; some trainers do it before they write their caches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...errors import CacheError

_WAN21_MEAN = (
    *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
    *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
)
_WAN21_STD = (
    *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
    *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
)


@dataclass(frozen=True)
class LatentSpace:
    """The latents of a VAE. A model sees (value - mean) × scale / std."""

    name: str
    channels: int
    downscale: int = 8
    frames: bool = False  # whether latents have an axis of frames, also those of images
    scale: float = 1.0
    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)

    def latent(self, stored: torch.Tensor, scaled: bool) -> torch.Tensor:
        """A stored latent [C, (T,) H, W] as the samples [1, C, (T,) H, W] of a LATENT.

        What was scaled comes back as float32: rounding it to fewer bits again would lose some.
        """
        value = stored[:, None] if self.frames and stored.ndim == 3 else stored
        if not self.frames and stored.ndim == 4 and stored.shape[1] == 1:
            value = stored[:, 0]
        right = value.ndim == (4 if self.frames else 3) and value.shape[0] == self.channels and value.numel()
        if not right or not stored.is_floating_point():
            expected = f"[{self.channels}, {'frames, ' if self.frames else ''}height, width]"
            raise CacheError(f"its latent has shape {tuple(stored.shape)}, expected {expected} of {self.name}")
        return (self._unscaled(value) if scaled else _plain(value))[None]

    def _unscaled(self, value: torch.Tensor) -> torch.Tensor:
        if (self.scale, tuple(self.mean), tuple(self.std)) == (1.0, (0.0,), (1.0,)):
            return _plain(value)
        rows = (-1, *[1] * (value.ndim - 1))
        mean, std = torch.tensor(self.mean).view(rows), torch.tensor(self.std).view(rows)
        return value.float() * (std / self.scale) + mean


def loss_weights(mask: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
    """A mask [height, width] as weights [1, h, w] at the size of a latent."""
    if mask.ndim != 2 or not mask.is_floating_point() or not mask.numel():
        raise CacheError(f"its mask has shape {tuple(mask.shape)}, expected [height, width]")
    height, width = latent.shape[-2:]
    return torch.nn.functional.adaptive_avg_pool2d(mask[None].float(), (height, width)).half()


def _plain(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.dtype == torch.float64 else value


SD1 = LatentSpace("SD 1", 4, scale=0.18215)
SDXL = LatentSpace("SDXL", 4, scale=0.13025)
SD3 = LatentSpace("SD3", 16, scale=1.5305, mean=(0.0609,))
FLUX = LatentSpace("Flux", 16, scale=0.3611, mean=(0.1159,))
FLUX2 = LatentSpace("Flux.2", 128, downscale=16)
WAN21 = LatentSpace("Wan 2.1 and Qwen Image", 16, frames=True, mean=_WAN21_MEAN, std=_WAN21_STD)
HUNYUAN_VIDEO = LatentSpace("HunyuanVideo", 16, frames=True, scale=0.476986)
HUNYUAN_VIDEO_15 = LatentSpace("HunyuanVideo 1.5", 32, downscale=16, frames=True, scale=1.03682)
HUNYUAN_IMAGE = LatentSpace("HunyuanImage 2.1", 64, downscale=32, scale=0.75289)
