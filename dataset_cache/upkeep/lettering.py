"""The letters of texts in pictures: Pillow's own font, or one of the system for those that it lacks."""

from __future__ import annotations

from functools import lru_cache

from PIL import ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

# Of Linux, Windows and macOS; each has Chinese, Japanese and Korean letters. Pillow looks in the system's folders.
_SYSTEM = (
    "NotoSansCJK-Regular.ttc",
    "SourceHanSans-Regular.ttc",
    "wqy-microhei.ttc",
    "DroidSansFallbackFull.ttf",
    "msyh.ttc",
    "simsun.ttc",
    "PingFang.ttc",
    "Hiragino Sans GB.ttc",
    "Arial Unicode.ttf",
)
_LAST_OWN = 0x17F  # Pillow's font has Latin letters


def font_for(text: str, size: int) -> Font:
    """The font to draw `drawable(text)` with."""
    return _system_font(size) if any(ord(letter) > _LAST_OWN for letter in text) else _own_font(size)


def drawable(text: str) -> str:
    """The text with the letters that Pillow's own font has: it has no multiplication sign."""
    return text.replace("×", "x")


@lru_cache(maxsize=32)
def _own_font(size: int) -> Font:
    return ImageFont.load_default(size)


@lru_cache(maxsize=32)
def _system_font(size: int) -> Font:
    for name in _SYSTEM:
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    return _own_font(size)
