"""Pictures: one picture of a source, in a file or in memory, that can be read when it is needed."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from ..errors import CacheError
from . import images
from .images import Header, Picture
from .source_files import Facts, content_hash, read_bytes


@dataclass(frozen=True, slots=True)
class FilePicture:
    """A picture file. `content` is empty if it was not hashed yet: reading it does that in passing."""

    directory: str
    name: str
    content: bytes
    width: int
    height: int
    alpha: bool

    @property
    def path(self) -> str:
        return os.path.join(self.directory, self.name)

    def read(self) -> Reading:
        stamp, data = read_bytes(self.path)
        return Reading(content_hash(data), data, stamp)


@dataclass(frozen=True, slots=True)
class MemoryPicture:
    """A picture that somebody handed over."""

    pixels: torch.Tensor  # uint8 [H, W, 3 or 4]
    content: bytes
    width: int
    height: int
    alpha: bool

    def read(self) -> Reading:
        return Reading(self.content, self.pixels.numpy(), None)


@dataclass(frozen=True, slots=True)
class Reading:
    """A picture's bytes as they are now, with their hash, and the stamp of the file that they belong to."""

    content: bytes
    data: bytes | np.ndarray
    stamp: bytes | None

    def decode(self, background: tuple[int, int, int]) -> Picture:
        if isinstance(self.data, bytes):
            return images.decode(self.data, background)
        return images.flatten(Image.fromarray(self.data), background)

    def probe(self) -> Header:
        assert isinstance(self.data, bytes), "pictures in memory do not change"
        return images.probe(io.BytesIO(self.data))

    def facts(self, picture: Picture) -> Facts:
        """What decoding told, which is more reliable than the header."""
        return Facts(self.content, *picture.size, picture.alpha is not None, picture.format)


def picture_of(file: Facts, directory: str, name: str) -> FilePicture:
    return FilePicture(directory, name, file.content, file.width, file.height, file.alpha)


def picture_in_memory(tensor: torch.Tensor, name: str) -> MemoryPicture:
    """Take a picture of the host over: [H, W, C] or [1, H, W, C] with 1, 3 or 4 channels, in 0…1."""
    pixels = tensor.detach()
    if pixels.ndim == 4 and pixels.shape[0] == 1:
        pixels = pixels[0]
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4) or 0 in pixels.shape:
        raise CacheError(
            f"{name}: is {tuple(tensor.shape)}, expected one picture [H, W, 3]; split a batch into its pictures"
        )
    if pixels.dtype != torch.uint8:
        if not torch.isfinite(pixels).all():
            raise CacheError(f"{name}: holds values that are not finite")
        pixels = (pixels.float().clamp(0, 1) * 255).round().to(torch.uint8)
    pixels = pixels.cpu().expand(-1, -1, 3) if pixels.shape[2] == 1 else pixels.cpu()
    pixels = pixels.contiguous()
    content = content_hash(repr(tuple(pixels.shape)).encode() + pixels.numpy().tobytes())
    return MemoryPicture(pixels, content, pixels.shape[1], pixels.shape[0], pixels.shape[2] == 4)
