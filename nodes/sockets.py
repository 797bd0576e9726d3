"""The pack's own socket types, and options and conversions that its nodes share."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from comfy_api.latest import io
from PIL import Image

Source = io.Custom("STREAMCACHE_SOURCE")  # a tuple of dataset_cache sources
Dataset = io.Custom("STREAMCACHE_DATASET")  # a DatasetHandle or a DatasetPlan
Options = io.Custom("STREAMCACHE_OPTIONS")  # training settings

OPEN: Any = object()  # the default of an input in `validate_inputs`: it is not connected
CATEGORY = "StreamCache"
ADVANCED: dict[str, Any] = {"optional": True, "advanced": True}  # inputs that are shown only under "advanced"


def first(value: Any) -> Any:
    """The single value of a list input; None if empty. During validation ComfyUI passes the value itself."""
    return (value[0] if value else None) if isinstance(value, (list, tuple)) else value


def scalars(values: Mapping[str, Any]) -> dict[str, Any]:
    """The single values of a node with `is_input_list`, which gets every input as a list."""
    return {name: value[0] if isinstance(value, list) and value else None for name, value in values.items()}


def words(name: str, tooltip: str) -> io.Input:
    """A conditioning, or text."""
    return io.MultiType.Input(name, [io.Conditioning, io.String], optional=True, tooltip=tooltip)


def image(pil: Image.Image) -> torch.Tensor:
    """A PIL image as ComfyUI's IMAGE: [1, H, W, 3] in 0…1."""
    return torch.from_numpy(np.asarray(pil.convert("RGB"), np.float32) / 255)[None]
