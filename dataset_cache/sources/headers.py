"""Headers of image files: their sizes, from the first bytes of a PNG or JPEG.

Pillow opens any file, but takes ten times as long. Whatever is unusual in a header is left to it: rotation, palettes
with transparency, damage, other formats.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

START_BYTES = 1 << 16  # of a file, in which its whole header usually is
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}  # by color type
_PNG_ALPHA = (4, 6)
_PNG_CHUNKS = frozenset({b"PLTE", b"pHYs", b"gAMA", b"cHRM", b"sRGB", b"sBIT", b"bKGD", b"tIME", b"tEXt"})
_PNG_ROTATING = (b"Raw profile", b"XML:")  # texts that may have an orientation
_JPEG = b"\xff\xd8\xff"
_JPEG_FRAMES = (0xC0, 0xC1, 0xC2)
_JPEG_SEGMENTS = frozenset({0xC4, 0xDB, 0xDD, 0xE0, 0xE1, 0xE2, 0xED, 0xEE, 0xFE, *_JPEG_FRAMES})
_JPEG_UNUSUAL = (b"Exif", b"http", b"MPF\0")  # a rotation, or several images in one file
_JPEG_SCAN = 0xDA


@dataclass(frozen=True)
class Header:
    """What the header of a file says: its upright size, and whether it may be transparent."""

    width: int
    height: int
    alpha: bool
    format: str


def read_header(start: bytes) -> Header | None:
    """The header in the first bytes of a file; None if only Pillow can tell."""
    try:
        if start.startswith(_PNG):
            return _png(start)
        return _jpeg(start) if start.startswith(_JPEG) else None
    except (struct.error, IndexError):  # it ends too early, or is longer than these bytes
        return None


def _png(start: bytes) -> Header | None:
    length, kind, width, height, depth, color, packing, filtering = struct.unpack_from(">I4sIIBBBB", start, 8)
    known = length == 13 and kind == b"IHDR" and depth in _PNG_DEPTHS.get(color, ()) and not packing | filtering
    if not known or not _is_intact(start, 8, length):
        return None
    at = 8 + 12 + length
    while True:
        length, kind = struct.unpack_from(">I4s", start, at)
        if kind == b"IDAT":
            return Header(width, height, color in _PNG_ALPHA, "PNG")
        rotating = kind == b"tEXt" and start.startswith(_PNG_ROTATING, at + 8)
        if kind not in _PNG_CHUNKS or rotating or not _is_intact(start, at, length):
            return None
        at += 12 + length


def _is_intact(start: bytes, at: int, length: int) -> bool:
    (checksum,) = struct.unpack_from(">I", start, at + 8 + length)
    return zlib.crc32(start[at + 4 : at + 8 + length]) == checksum


def _jpeg(start: bytes) -> Header | None:
    found, at = None, 2
    while True:
        mark, kind, length = struct.unpack_from(">BBH", start, at)
        if mark == 0xFF and kind == _JPEG_SCAN:
            return found
        body = at + 4
        if mark != 0xFF or kind not in _JPEG_SEGMENTS or start.startswith(_JPEG_UNUSUAL, body):
            return None
        if kind in _JPEG_FRAMES:
            depth, height, width, layers = struct.unpack_from(">BHHB", start, body)
            if found is not None or depth != 8 or layers not in (1, 3, 4):
                return None
            found = Header(width, height, False, "JPEG")
        at += 2 + length
