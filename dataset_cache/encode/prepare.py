"""Preparing a sample: its file is read, hashed, decoded and placed, as far as entries are missing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image

from ...errors import SourceUnreadable, Unusable
from ..sources import THUMBNAIL, Facts, FileRecord, Picture, gray_mask, render_mask
from .recipe import Planned, Recipe

Entry = tuple[bytes, Any, str]  # key, structure, field
_CLAIMED = 4096


@dataclass
class Prepared:
    """The result of decoding a sample: images for the encoder, and entries that can be stored as they are."""

    sample: Planned
    images: list[tuple[bytes, torch.Tensor]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    record: FileRecord | None = None  # what to remember about the file
    problem: str = ""
    unreadable: bool = False  # the problem may pass
    claimed: list[tuple[str, int, bytes]] = field(default_factory=list)  # field, variant, key of entries to make


class Preparer:
    """Prepares samples. Safe to call from several threads: an entry that several samples need is made once."""

    def __init__(self, recipe: Recipe, has: Callable[[bytes], bool]) -> None:
        self.decoded = 0
        self._recipe, self._has = recipe, has
        self._claimed: set[bytes] = set()
        self._many = _CLAIMED
        self._lock = threading.Lock()

    def missing(self, sample: Planned) -> list[tuple[str, int, bytes]]:
        """Field, variant and key of each entry that is neither stored nor claimed."""
        wanted = self._recipe.image_keys(sample, sample.placement()).items()
        flat = [(name, variant, key) for name, keys in wanted for variant, key in enumerate(keys)]
        return [entry for entry in flat if entry[2] not in self._claimed and not self._has(entry[2])]

    def __call__(self, sample: Planned, only: tuple[str, int] | None = None) -> Prepared:
        """Prepare a sample, or `only` one field and variant of it."""
        result = Prepared(sample)
        try:
            self._prepare(sample, result, only)
        except Unusable as error:
            result.problem, result.unreadable = str(error), isinstance(error, SourceUnreadable)
            self._release(result)
        return result

    def _prepare(self, sample: Planned, result: Prepared, only: tuple[str, int] | None) -> None:
        reading = sample.item.image.read()
        try:
            sample.follow(reading)  # keys belong to the bytes that are decoded
            result.claimed = self._claim(sample, only)
            if not result.claimed:
                result.record = reading.record(Facts(reading.content, *sample.size, sample.alpha))
                return
            picture = reading.decode(self._recipe.background)
            if (picture.size, picture.alpha is not None) != (sample.size, sample.alpha):  # the header was wrong
                sample.adjust(picture.size, picture.alpha is not None)
                result.claimed = self._claim(sample, only)
        except SourceUnreadable:
            raise
        except Unusable as error:
            result.record = reading.record(Facts(reading.content, error=str(error)))
            raise
        with self._lock:
            self.decoded += 1
        facts = Facts(reading.content, *picture.size, picture.alpha is not None, picture.format)
        result.record = reading.record(facts)
        self._make(sample, picture, result)

    def _claim(self, sample: Planned, only: tuple[str, int] | None) -> list[tuple[str, int, bytes]]:
        with self._lock:
            found = [entry for entry in self.missing(sample) if only is None or entry[:2] == only]
            self._claimed.update(key for _, _, key in found)
            if len(self._claimed) > self._many:  # stored entries need no claim
                self._claimed = {key for key in self._claimed if not self._has(key)}
                self._many = max(_CLAIMED, 2 * len(self._claimed))
        return found

    def _release(self, result: Prepared) -> None:
        """Another sample, or another attempt, may make these entries."""
        with self._lock:
            self._claimed.difference_update(key for _, _, key in result.claimed)

    def _make(self, sample: Planned, picture: Picture, result: Prepared) -> None:
        placement = sample.placement()
        mask = self._mask(sample, picture) if any(name == "mask" for name, _, _ in result.claimed) else None
        latent = placement.height // self._recipe.downscale, placement.width // self._recipe.downscale
        for name, variant, key in result.claimed:
            flip = sample.flips[variant]
            if name == "latent":
                result.images.append((key, picture.render(placement, flip)))
            elif name == "mask":
                result.entries.append((key, render_mask(mask, placement, flip, latent), "mask"))
            elif name == THUMBNAIL:
                result.entries.append((key, picture.thumbnail(placement, self._recipe.thumbnail), THUMBNAIL))

    def _mask(self, sample: Planned, picture: Picture) -> Image.Image | None:
        mask = sample.item.mask
        if mask is None:
            return picture.alpha if sample.masked_by_alpha else None
        reading = mask.read()
        if reading.content != mask.content:
            raise SourceUnreadable(f"its mask {mask.name} changed during the run; encode again")
        return gray_mask(reading.decode((0, 0, 0)), picture.size)
