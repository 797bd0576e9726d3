"""Sockets: the types that the pack's nodes hand to each other, beside the host's own."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from comfy_api.latest import io
from PIL import Image

Source = io.Custom("STREAMCACHE_SOURCE")  # a tuple of dataset_cache sources
Dataset = io.Custom("STREAMCACHE_DATASET")  # a DatasetHandle, or a DatasetPlan that is not encoded yet
Options = io.Custom("STREAMCACHE_OPTIONS")  # settings for training

CATEGORY = "StreamCache"
RARE = {"optional": True, "advanced": True}  # inputs that few need: out of sight until they are asked for


def first(value: Any) -> Any:
    """One value of a node that takes lists; None of an empty one. Before the host made lists of it, it is itself."""
    return (value[0] if value else None) if isinstance(value, (list, tuple)) else value


def scalars(values: Mapping[str, Any]) -> dict[str, Any]:
    """The single values of a node that takes lists: the host gives every input as a list there."""
    return {name: value[0] if isinstance(value, list) and value else None for name, value in values.items()}


def image(picture: Image.Image) -> torch.Tensor:
    """A picture as the host passes images: [1, H, W, 3] in 0…1."""
    return torch.from_numpy(np.asarray(picture.convert("RGB"), np.float32) / 255)[None]
