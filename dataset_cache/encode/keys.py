"""Keys: the hash of everything that decides an entry's content. Where the key is the same, the entry is."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from json.encoder import encode_basestring_ascii as _quote

from ..sources import MASK_VERSION, RENDER_VERSION, Placement

VERSION = 1  # of how keys are made


def latent_key(content: bytes, view: str, encoder: str) -> bytes:
    return _key("latent", f'"{content.hex()}",{view},{_quote(encoder)}')


def conditioning_key(caption: str, encoder: str) -> bytes:
    return _key("conditioning", f"{_quote(caption)},{_quote(encoder)}")


def mask_key(mask: bytes, view: str, downscale: int) -> bytes:
    """`mask` is the content of the mask's file, or of the picture whose alpha channel it is."""
    return _key("mask", f'"{mask.hex()}",{view},{downscale},{MASK_VERSION}')


def full_mask_key(width: int, height: int, downscale: int) -> bytes:
    """The mask of pictures that have none: all ones, one entry for each size."""
    return _key("mask", f'"full",{width // downscale},{height // downscale}')


def thumbnail_key(content: bytes, view: str, side: int) -> bytes:
    return _key("thumbnail", f'"{content.hex()}",{view},{side}')


def view_of(placement: Placement, flip: bool, background: tuple[int, int, int] | None) -> str:
    """What decides the pixels beside the file: the placement, the side, and what shows through where that can be."""
    colour = "null" if background is None else _list(background)
    return f"[{_list(placement.identity())},{'true' if flip else 'false'},{colour},{RENDER_VERSION}]"


def _key(field: str, parts: str) -> bytes:
    # The text is canonical JSON, put together by hand: a run over a large set makes a million keys.
    return blake2b(f'[{VERSION},"{field}",{parts}]'.encode(), digest_size=16).digest()


def _list(numbers: Iterable[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"
