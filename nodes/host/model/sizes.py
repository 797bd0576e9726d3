"""Size conditioning: the original size, crop and target of each sample, for models that are told of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import comfy.model_base
import numpy as np

# Models that were trained to know how large a picture was before it was resized, and where it was cut.
SIZE_CONDITIONED = (comfy.model_base.SDXL, comfy.model_base.SDXLRefiner, comfy.model_base.HunyuanDiT)


@dataclass(frozen=True)
class Sizes:
    """The columns of a dataset that size conditioning needs."""

    original: np.ndarray  # [samples, 2] width, height of the source; 0 where unknown
    crop: np.ndarray  # [samples, 4] left, top, width, height in the resized picture

    @classmethod
    def of(cls, dataset: Any) -> Sizes:
        return cls(np.asarray(dataset.column("original_size")), np.asarray(dataset.column("crop")))

    def told(self, index: int, latent: tuple[int, ...], downscale: int) -> dict[str, int]:
        """What the model is told of a sample whose latent has this shape; its own bucket is always the target."""
        target = {"target_width": latent[-1] * downscale, "target_height": latent[-2] * downscale}
        width, height = (int(number) for number in self.original[index])
        left, top = (int(number) for number in self.crop[index][:2])
        if not (width and height):
            width, height, left, top = target["target_width"], target["target_height"], 0, 0
        return {"width": width, "height": height, "crop_w": left, "crop_h": top, **target}


def wants_sizes(model: Any) -> bool:
    return isinstance(model, SIZE_CONDITIONED)
