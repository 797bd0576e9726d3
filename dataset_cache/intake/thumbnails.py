"""Thumbnails of image files, kept in memory while the file is the same; larger pictures, and masks."""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageOps

from ...errors import Unusable
from ..sources import MAX_PIXELS, flatten

SIDE = 160  # pixels
_MAX_BYTES = 32 << 20  # of all thumbnails in memory
_AT_ONCE = 2  # decoded images may be large
_QUALITY, _PICTURE_QUALITY = 80, 90

_made: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
_kept_bytes = 0
_lock = threading.Lock()
_decoding = threading.Semaphore(_AT_ONCE)


def file_thumbnail(path: Path) -> bytes:
    """A JPEG with sides of at most SIDE pixels. Any problem with the file raises Unusable."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise Unusable(f"{path.name}: cannot be read: {error.strerror or error}") from None
    key = (str(path), status.st_size, status.st_mtime_ns)
    with _lock:
        if key in _made:
            _made.move_to_end(key)
            return _made[key]
    with _decoding:
        data = _make(path, SIDE, _QUALITY)
    _keep(key, data)
    return data


def _keep(key: tuple[str, int, int], data: bytes) -> None:
    global _kept_bytes
    with _lock:
        _kept_bytes += len(data) - len(_made.pop(key, b""))
        _made[key] = data
        while _kept_bytes > _MAX_BYTES:
            _kept_bytes -= len(_made.popitem(last=False)[1])


def file_picture(path: Path, side: int) -> bytes:
    """An image file as a JPEG with sides of at most `side` pixels, upright. Any problem with it raises Unusable."""
    with _decoding:
        return _make(path, side, _PICTURE_QUALITY)


def file_mask(path: Path, size: tuple[int, int], side: int, alpha: bool = False) -> bytes:
    """A mask file, or the alpha channel of an image, as an 8-bit grayscale PNG as large as the picture of an image of
    `size`."""
    with _decoding:
        return _guarded(path, lambda image: _mask(image, size, side, alpha))


def _make(path: Path, side: int, quality: int) -> bytes:
    return _guarded(path, lambda image: _jpeg(image, side, quality))


def _jpeg(image: Image.Image, side: int, quality: int) -> bytes:
    image.draft("RGB", (2 * side, 2 * side))  # JPEG: decodes a smaller version
    image.load()
    ImageOps.exif_transpose(image, in_place=True)
    image.thumbnail((side, side), Image.Resampling.BICUBIC, reducing_gap=2.0)
    file = io.BytesIO()
    flatten(image, (255, 255, 255)).rgb.save(file, "JPEG", quality=quality)
    return file.getvalue()


def _mask(image: Image.Image, size: tuple[int, int], side: int, alpha: bool) -> bytes:
    image.load()
    ImageOps.exif_transpose(image, in_place=True)
    scale = min(1.0, side / max(size))
    shown = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
    picture = flatten(image, (0, 0, 0))
    gray = picture.alpha if alpha and picture.alpha else picture.rgb.convert("L")
    gray = gray.resize(shown, Image.Resampling.BILINEAR, reducing_gap=2.0)
    file = io.BytesIO()
    gray.save(file, "PNG", compress_level=1)
    return file.getvalue()


def _guarded(path: Path, draw: Callable[[Image.Image], bytes]) -> bytes:
    try:
        with Image.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise Unusable(f"{path.name}: {image.width}×{image.height} pixels are too many")
            return draw(image)
    except Unusable:
        raise
    except Exception as error:  # codecs raise OSError, SyntaxError, ValueError, struct.error, zlib.error and more
        raise Unusable(f"{path.name}: cannot be decoded: {error}") from None
