"""Thumbnails: a small JPEG of what is trained, kept as bytes in a tensor beside each sample."""

from __future__ import annotations

import io

import torch
from PIL import Image

from .images import Picture
from .transforms import Placement

THUMBNAIL = "thumbnail"
_QUALITY = 80


def encode_thumbnail(picture: Picture, placement: Placement, side: int) -> torch.Tensor:
    """The placed picture, its longer side `side` pixels long, as a uint8 tensor of JPEG bytes."""
    scale = min(1.0, side / max(placement.width, placement.height))
    size = max(1, round(placement.width * scale)), max(1, round(placement.height * scale))
    box = placement.box(*picture.size)
    small = picture.rgb.resize(size, Image.Resampling.BICUBIC, box=box, reducing_gap=2.0)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=_QUALITY)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def decode_thumbnail(data: torch.Tensor) -> Image.Image:
    image = Image.open(io.BytesIO(data.numpy().tobytes()))
    image.load()
    return image
