"""Images: a file's bytes become an upright RGB picture, and the picture becomes pixels of a wanted size.

What formats mean is decided here: EXIF rotation is applied, animated files give their first frame, 16-bit grey is
scaled (not clipped), palettes and CMYK become RGB, and what is transparent shows a background colour; the alpha channel
is kept beside.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import BinaryIO, TypeVar

import numpy as np
import torch
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from ..errors import Unusable
from .transforms import Placement

EXTENSIONS = frozenset({"png", "jpg", "jpeg", "jfif", "webp", "avif", "bmp", "tif", "tiff", "gif"})
MAX_PIXELS = 178_956_970  # what Pillow itself refuses; checked here too because its limit is often switched off
RENDER_VERSION = 1  # part of every key: raise it when the same file would give other pixels
_ORIENTATION = 0x0112
_NAMES = {"jpg": "JPEG", "jpeg": "JPEG", "jfif": "JPEG", "tif": "TIFF", "tiff": "TIFF"}
_SHALLOW_GREY = 65535
_T = TypeVar("_T")


@dataclass(frozen=True)
class Header:
    """What the first bytes of a file tell: its size as it will stand upright, and whether it may be transparent."""

    width: int
    height: int
    alpha: bool
    format: str


@dataclass(frozen=True)
class Picture:
    """A decoded picture, upright, 8 bits a channel."""

    rgb: Image.Image
    alpha: Image.Image | None
    format: str = ""

    @property
    def size(self) -> tuple[int, int]:
        return self.rgb.size


def is_image(name: str) -> bool:
    stem, _, extension = name.rpartition(".")
    return bool(stem) and extension.lower() in EXTENSIONS


def probe(file: BinaryIO) -> Header:
    """Read the header only."""
    return _guarded(_probe, file)


def decode(data: bytes, background: tuple[int, int, int] = (255, 255, 255)) -> Picture:
    """Decode a whole file. Anything wrong with it is an Unusable that says what."""
    return _guarded(lambda file: _decode(file, data, background), io.BytesIO(data))


def flatten(image: Image.Image, background: tuple[int, int, int]) -> Picture:
    """A decoded image of any mode as 8-bit RGB over the background, its alpha channel beside."""
    if image.mode.startswith("I") or image.mode == "F":
        return Picture(_shallow(image).convert("RGB"), None)
    if _is_transparent(image):
        layers = image.convert("RGBA")
        alpha = layers.getchannel("A")
        base = Image.new("RGB", image.size, background)
        base.paste(layers, mask=alpha)
        return Picture(base, alpha)
    return Picture(image if image.mode == "RGB" else image.convert("RGB"), None)


def render_image(picture: Picture, placement: Placement, flip: bool = False) -> torch.Tensor:
    """The placed picture as float32 [H, W, 3] in 0…1."""
    pixels = np.asarray(_resize(picture.rgb, placement, flip, Image.Resampling.LANCZOS))
    return torch.from_numpy(pixels.astype(np.float32) / np.float32(255))


def render_grey(image: Image.Image, placement: Placement, flip: bool = False) -> torch.Tensor:
    """A placed grey picture (a mask) as float32 [H, W] in 0…1."""
    # Not Lanczos: its ringing would weaken what lies beside an edge.
    pixels = np.asarray(_resize(image, placement, flip, Image.Resampling.BILINEAR))
    return torch.from_numpy(pixels.astype(np.float32) / np.float32(255))


def format_of(name: str) -> str:
    """The format that a file's name promises."""
    extension = name.rpartition(".")[2].lower()
    return _NAMES.get(extension, extension.upper())


def _resize(image: Image.Image, placement: Placement, flip: bool, how: Image.Resampling) -> Image.Image:
    size = (placement.width, placement.height)
    resized = image.resize(size, how, box=placement.box(*image.size))
    return ImageOps.mirror(resized) if flip else resized


def _guarded(read: Callable[[BinaryIO], _T], file: BinaryIO) -> _T:
    try:
        return read(file)
    except Unusable:
        raise
    except UnidentifiedImageError:
        empty = file.seek(0, io.SEEK_END) == 0
        raise Unusable("the file is empty" if empty else "not an image that Pillow can read") from None
    except Image.DecompressionBombError:
        raise Unusable(f"more than {MAX_PIXELS:,} pixels; scale it down first") from None
    except Exception as error:  # codecs raise OSError, SyntaxError, ValueError, struct.error, zlib.error and more
        raise Unusable(f"cannot be decoded: {error}") from error


def _probe(file: BinaryIO) -> Header:
    with Image.open(file) as image:
        width, height = _checked_size(image)
        if _lies(image):
            width, height = height, width
        return Header(width, height, _is_transparent(image), image.format or "")


def _lies(image: Image.Image) -> bool:
    if image.format == "TIFF":  # Pillow turns these by itself and states the turned size
        return False
    # PNG's own getexif decodes the whole picture to look behind the pixels; decoding finds such a late tag anyway.
    return Image.Image.getexif(image).get(_ORIENTATION) in (5, 6, 7, 8)


def _decode(file: BinaryIO, data: bytes, background: tuple[int, int, int]) -> Picture:
    with Image.open(file) as image:
        _checked_size(image)
        if ImageFile.LOAD_TRUNCATED_IMAGES:  # some other pack asked Pillow to fill what is missing with grey
            _check_complete(data, image.format or "")
        image.load()
        # Copies are avoided: for large pictures they take as long as decoding.
        ImageOps.exif_transpose(image, in_place=True)
        return replace(flatten(image, background), format=image.format or "")


def _checked_size(image: Image.Image) -> tuple[int, int]:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise Unusable(f"{width} × {height} pixels are more than {MAX_PIXELS:,}; scale it down first")
    if not width or not height:
        raise Unusable(f"the picture is {width} × {height} pixels")
    return width, height


def _check_complete(data: bytes, kind: str) -> None:
    end = {"PNG": b"IEND", "JPEG": b"\xff\xd9"}.get(kind)
    if end and end not in data[len(data) // 2 :]:
        raise Unusable("cannot be decoded: image file is truncated")


def _is_transparent(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info


def _shallow(image: Image.Image) -> Image.Image:
    """Deep grey to 8 bits by scaling: Pillow's own conversion clips everything above 255 to white."""
    values = np.asarray(image)
    low, high = float(values.min()), float(values.max())
    if image.mode == "F":
        if low < 0 or high > 1:
            raise Unusable(f"float pixels between {low:g} and {high:g}, expected 0 to 1")
        return Image.fromarray(np.rint(values * 255).astype(np.uint8))
    if low < 0 or high > _SHALLOW_GREY:
        raise Unusable(f"grey values between {low:g} and {high:g}, expected 16 bits")
    return Image.fromarray(np.rint(values.astype(np.float32) / 257).astype(np.uint8))
