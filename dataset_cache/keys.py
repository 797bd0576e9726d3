"""Keys: the hash of everything that decides an entry's content. Where the key is the same, the entry is."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

from . import images, masks
from .transforms import Placement

VERSION = 1  # of how keys are made


def latent_key(content: bytes, view: list[Any], encoder: str) -> bytes:
    return _key("latent", [content.hex(), view, encoder])


def conditioning_key(caption: str, encoder: str) -> bytes:
    return _key("conditioning", [caption, encoder])


def mask_key(mask: bytes, view: list[Any], downscale: int) -> bytes:
    """`mask` is the content of the mask's file, or of the picture whose alpha channel it is."""
    return _key("mask", [mask.hex(), view, downscale, masks.VERSION])


def full_mask_key(width: int, height: int, downscale: int) -> bytes:
    """The mask of pictures that have none: all ones, one entry for each size."""
    return _key("mask", ["full", width // downscale, height // downscale])


def thumbnail_key(content: bytes, view: list[Any], side: int) -> bytes:
    return _key("thumbnail", [content.hex(), view, side])


def view_of(placement: Placement, flip: bool, background: tuple[int, int, int] | None) -> list[Any]:
    """What decides the pixels beside the file: the placement, the side, and what shows through where that can be."""
    return [placement.identity(), flip, list(background) if background else None, images.VERSION]


def _key(field: str, parts: list[Any]) -> bytes:
    text = json.dumps([VERSION, field, *parts], separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).digest()
