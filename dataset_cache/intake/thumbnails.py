"""Thumbnails of image files, made when they are shown and kept in memory while the file is the same."""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from pathlib import Path

from PIL import Image, ImageOps

from ...errors import Unusable
from ..sources import MAX_PIXELS, flatten

SIDE = 160  # pixels
_MAX_BYTES = 32 << 20  # of all thumbnails in memory
_AT_ONCE = 2  # decoded images may be large
_QUALITY = 80

_made: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
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
        data = _make(path)
    with _lock:
        _made[key] = data
        while sum(map(len, _made.values())) > _MAX_BYTES:
            _made.popitem(last=False)
    return data


def _make(path: Path) -> bytes:
    try:
        with Image.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise Unusable(f"{path.name}: {image.width}×{image.height} pixels are too many")
            image.draft("RGB", (2 * SIDE, 2 * SIDE))  # JPEG: decodes a smaller version
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            image.thumbnail((SIDE, SIDE), Image.Resampling.BICUBIC, reducing_gap=2.0)
            file = io.BytesIO()
            flatten(image, (255, 255, 255)).rgb.save(file, "JPEG", quality=_QUALITY)
            return file.getvalue()
    except Unusable:
        raise
    except Exception as error:  # codecs raise OSError, SyntaxError, ValueError, struct.error, zlib.error and more
        raise Unusable(f"{path.name}: cannot be decoded: {error}") from None
