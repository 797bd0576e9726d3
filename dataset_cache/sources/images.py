"""Images: decode a file's bytes to upright RGB, then render pixels of a given size, or a thumbnail.

EXIF rotation is applied, animated files give their first frame, 16-bit gray is scaled (not clipped), palettes and CMYK
become RGB. Transparent areas show a background color; the alpha channel is kept separately.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import BinaryIO, TypeVar

import numpy as np
import torch
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from ...errors import SourceUnreadable, Unusable
from .headers import START_BYTES, Header, read_header
from .transforms import Placement

THUMBNAIL = "thumbnail"  # the field's name
EXTENSIONS = frozenset({"png", "jpg", "jpeg", "jfif", "webp", "avif", "bmp", "tif", "tiff", "gif"})
MAX_PIXELS = 178_956_970  # Pillow's own limit, checked here as well because it is often switched off
RENDER_VERSION = 1  # part of every key: raise it when the same file would give other pixels
_ORIENTATION = 0x0112
_NAMES = {"jpg": "JPEG", "jpeg": "JPEG", "jfif": "JPEG", "tif": "TIFF", "tiff": "TIFF"}
_QUALITY = 80  # of JPEG thumbnails
_SHALLOW_GRAY = 65535
_T = TypeVar("_T")


@dataclass(frozen=True)
class Picture:
    """A decoded image: upright, 8 bits per channel."""

    rgb: Image.Image
    alpha: Image.Image | None
    format: str = ""

    @property
    def size(self) -> tuple[int, int]:
        return self.rgb.size

    def render(self, placement: Placement, flip: bool = False) -> torch.Tensor:
        """The placed image as float32 [H, W, 3] in 0…1."""
        pixels = np.asarray(_resize(self.rgb, placement, flip, Image.Resampling.LANCZOS))
        return torch.from_numpy(pixels.astype(np.float32) / np.float32(255))

    def thumbnail(self, placement: Placement, side: int) -> torch.Tensor:
        """The placed image with a longer side of `side` pixels, as a uint8 tensor of JPEG bytes."""
        scale = min(1.0, side / max(placement.width, placement.height))
        size = max(1, round(placement.width * scale)), max(1, round(placement.height * scale))
        box = placement.box(*self.size)
        small = self.rgb.resize(size, Image.Resampling.BICUBIC, box=box, reducing_gap=2.0)
        file = io.BytesIO()
        small.save(file, "JPEG", quality=_QUALITY)
        return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def is_image(name: str) -> bool:
    stem, _, extension = name.rpartition(".")
    return bool(stem) and extension.lower() in EXTENSIONS


def probe(file: BinaryIO) -> Header:
    """Read the header only."""
    return _guarded(_probe, file)


def decode(data: bytes, background: tuple[int, int, int] = (255, 255, 255)) -> Picture:
    """Decode a file. Any problem with it raises Unusable with the reason."""
    return _guarded(lambda file: _decode(file, data, background), io.BytesIO(data))


def decode_small(data: bytes, size: tuple[int, int]) -> Image.Image:
    """A file as a small upright grayscale image, stretched to this size. JPEG is decoded only as far as needed."""
    return _guarded(lambda file: _decode_small(file, size), io.BytesIO(data))


def flatten(image: Image.Image, background: tuple[int, int, int]) -> Picture:
    """An image of any mode as 8-bit RGB over the background, with its alpha channel."""
    if image.mode.startswith("I") or image.mode == "F":
        return Picture(_shallow(image).convert("RGB"), None)
    if _is_transparent(image):
        layers = image.convert("RGBA")
        alpha = layers.getchannel("A")
        base = Image.new("RGB", image.size, background)
        base.paste(layers, mask=alpha)
        return Picture(base, alpha)
    return Picture(image if image.mode == "RGB" else image.convert("RGB"), None)


def render_gray(image: Image.Image, placement: Placement, flip: bool = False) -> torch.Tensor:
    """A placed grayscale image (a mask) as float32 [H, W] in 0…1."""
    # Not Lanczos: its ringing would change the weights along an edge.
    pixels = np.asarray(_resize(image, placement, flip, Image.Resampling.BILINEAR))
    return torch.from_numpy(pixels.astype(np.float32) / np.float32(255))


def decode_thumbnail(data: torch.Tensor) -> Image.Image:
    image = Image.open(io.BytesIO(data.numpy().tobytes()))
    image.load()
    return image


def format_of(name: str) -> str:
    """The format that a file's extension stands for."""
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
    except MemoryError:
        raise SourceUnreadable("there is not enough memory to decode it") from None
    except Exception as error:  # codecs raise OSError, SyntaxError, ValueError, struct.error, zlib.error and more
        # A codec's own errors have no number, except for a seek to where a damaged file says.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise SourceUnreadable(f"cannot be read: {error.strerror}") from error
        raise Unusable(f"cannot be decoded: {error}") from error


def _probe(file: BinaryIO) -> Header:
    header = read_header(file.read(START_BYTES))
    if header is not None and 0 < header.width * header.height <= MAX_PIXELS:
        return header
    file.seek(0)
    with Image.open(file) as image:
        width, height = _checked_size(image)
        if _is_rotated(image):
            width, height = height, width
        return Header(width, height, _is_transparent(image), image.format or "")


def _is_rotated(image: Image.Image) -> bool:
    """Whether EXIF rotation swaps width and height."""
    if image.format == "TIFF":  # Pillow rotates these itself and reports the rotated size
        return False
    # Not PNG's own getexif: it decodes the whole image to find tags after the pixels. Decoding finds them anyway.
    return Image.Image.getexif(image).get(_ORIENTATION) in (5, 6, 7, 8)


def _decode(file: BinaryIO, data: bytes, background: tuple[int, int, int]) -> Picture:
    with Image.open(file) as image:
        _checked_size(image)
        if ImageFile.LOAD_TRUNCATED_IMAGES:  # another node pack set Pillow to fill missing parts with gray
            _check_complete(data, image.format or "")
        image.load()
        # No copies: for large images they take as long as decoding.
        ImageOps.exif_transpose(image, in_place=True)
        return replace(flatten(image, background), format=image.format or "")


def _decode_small(file: BinaryIO, size: tuple[int, int]) -> Image.Image:
    with Image.open(file) as image:
        _checked_size(image)
        image.draft("L", (8 * size[0], 8 * size[1]))
        ImageOps.exif_transpose(image, in_place=True)
        return flatten(image, (255, 255, 255)).rgb.convert("L").resize(size, Image.Resampling.BOX)


def _checked_size(image: Image.Image) -> tuple[int, int]:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise Unusable(f"{width}×{height} pixels, expected at most {MAX_PIXELS:,} in total; scale it down first")
    if not width or not height:
        raise Unusable(f"the image is {width}×{height} pixels")
    return width, height


def _check_complete(data: bytes, kind: str) -> None:
    end = {"PNG": b"IEND", "JPEG": b"\xff\xd9"}.get(kind)
    if end and end not in data[len(data) // 2 :]:
        raise Unusable("cannot be decoded: image file is truncated")


def _is_transparent(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info


def _shallow(image: Image.Image) -> Image.Image:
    """16-bit or float gray scaled to 8 bits. Pillow's own conversion clips everything above 255 to white."""
    values = np.asarray(image)
    low, high = float(values.min()), float(values.max())
    if image.mode == "F":
        if low < 0 or high > 1:
            raise Unusable(f"float pixels between {low:g} and {high:g}, expected 0 to 1")
        return Image.fromarray(np.rint(values * 255).astype(np.uint8))
    if low < 0 or high > _SHALLOW_GRAY:
        raise Unusable(f"gray values between {low:g} and {high:g}, expected 16 bits")
    return Image.fromarray(np.rint(values.astype(np.float32) / 257).astype(np.uint8))
