"""The thumbnail of a sample: the stored JPEG, otherwise the latent in false colors."""

import io
from typing import Any, TypeGuard

import torch
from PIL import Image

from ...dataset_cache import THUMBNAIL, realize
from ..outside import Refused
from .cache_view import View

TYPE = "image/jpeg"
_MAX_BYTES = 4 << 20  # of a stored thumbnail
_MAX_LATENT_BYTES = 64 << 20
_MAX_SIDE = 1024  # a small file may decode to gigabytes of pixels
_SIDE = 128
_JPEG = b"\xff\xd8\xff"


def thumbnail(view: View, number: int) -> bytes:
    """A JPEG; a gray square if the sample has nothing to show."""
    if number >= len(view.cache):
        raise Refused(f"no sample {number:,}: the cache has {len(view.cache):,}", 404)
    fields = view.cache.sample(number).fields
    return _stored(fields.get(THUMBNAIL)) or false_colors(fields.get("latent"))


def _stored(data: Any) -> bytes | None:
    """The stored bytes; None if they are not a JPEG or its image is too large."""
    if not _is_tensor_below(data, _MAX_BYTES) or data.dtype != torch.uint8 or data.dim() != 1:
        return None
    found = realize(data).numpy().tobytes()
    return found if found.startswith(_JPEG) and _is_small(found) else None


def _is_small(data: bytes) -> bool:
    """According to the header; nothing is decoded."""
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            return max(image.size) <= _MAX_SIDE
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        return False


def false_colors(latent: Any) -> bytes:
    """Three channels of a latent as red, green and blue, each from its darkest to its brightest value."""
    samples = latent.get("samples") if isinstance(latent, dict) else None
    drawable = _is_tensor_below(samples, _MAX_LATENT_BYTES)
    if not drawable or samples.dim() < 3 or not samples.numel() or samples.is_complex():
        return _encode(Image.new("RGB", (_SIDE, _SIDE), (128, 128, 128)))
    values = realize(samples).float().nan_to_num(0.0, 0.0, 0.0)
    values = values.reshape(-1, *values.shape[-2:]) if values.dim() < 5 else values[0, :, 0]
    channels = torch.stack([values[n % len(values)] for n in range(3)])
    low, high = channels.amin((1, 2), keepdim=True), channels.amax((1, 2), keepdim=True)
    pixels = ((channels - low) / (high - low).clamp_min(1e-6) * 255).to(torch.uint8)
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    scale = _SIDE / max(image.size)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return _encode(image.resize(size, Image.Resampling.BILINEAR))


def _is_tensor_below(value: Any, max_bytes: int) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.numel() * value.element_size() <= max_bytes


def _encode(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return file.getvalue()
