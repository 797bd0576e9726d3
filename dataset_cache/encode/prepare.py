"""Prepare: a sample's file is read, hashed, decoded and placed, as far as entries of it are missing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from PIL import Image

from ..errors import Unusable
from ..sources import (
    THUMBNAIL,
    Facts,
    FilePicture,
    Picture,
    Reading,
    content_hash,
    decode_mask,
    encode_thumbnail,
    read_bytes,
    render_image,
    render_mask,
)
from .behind import Entry
from .recipe import Planned, Recipe, uses_alpha

_CLAIMED = 4096
Remembered = tuple[str, str, bytes, Facts]  # as the state keeps it


@dataclass
class Prepared:
    """What decoding a sample gave: pictures for the encoder, and entries that are ready to be stored."""

    sample: Planned
    pictures: list[tuple[bytes, torch.Tensor]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    remember: Remembered | None = None
    problem: str = ""

    @property
    def made(self) -> list[str]:
        """The field of each entry that this leads to."""
        return ["latent" for _ in self.pictures] + [name for _, _, name in self.entries]


class Preparer:
    """Safe to call from several threads: of samples that need the same entry, one makes it."""

    def __init__(self, recipe: Recipe, has: Callable[[bytes], bool]) -> None:
        self.decoded = 0
        self._recipe, self._has = recipe, has
        self._claimed: set[bytes] = set()
        self._many = _CLAIMED
        self._lock = threading.Lock()

    def missing(self, sample: Planned) -> list[tuple[str, int, bytes]]:
        """Field, variant and key of each entry that nobody has made or claimed."""
        wanted = self._recipe.picture_keys(sample, sample.placement()).items()
        flat = [(name, variant, key) for name, keys in wanted for variant, key in enumerate(keys)]
        return [entry for entry in flat if entry[2] not in self._claimed and not self._has(entry[2])]

    def __call__(self, sample: Planned, only: tuple[str, int] | None = None) -> Prepared:
        """`only` names the one field and variant to prepare."""
        result = Prepared(sample)
        try:
            self._prepare(sample, result, only)
        except Unusable as error:
            result.problem = str(error)
        return result

    def _prepare(self, sample: Planned, result: Prepared, only: tuple[str, int] | None) -> None:
        reading = sample.item.picture.read()
        try:
            self._follow(sample, reading)
            claimed = self._claim(sample, only)
            if not claimed:
                result.remember = _remember(sample, reading, Facts(reading.content, *sample.size, sample.alpha))
                return
            picture = reading.decode(self._recipe.background)
            if (picture.size, picture.alpha is not None) != (sample.size, sample.alpha):  # not as the header said
                _adjust(sample, picture.size, picture.alpha is not None)
                claimed = self._claim(sample, only)
        except Unusable as error:
            result.remember = _remember(sample, reading, Facts(reading.content, error=str(error)))
            raise
        with self._lock:
            self.decoded += 1
        result.remember = _remember(sample, reading, reading.facts(picture))
        self._make(sample, picture, claimed, result)

    def _follow(self, sample: Planned, reading: Reading) -> None:
        """The file may have changed since it was scanned. The key belongs to the bytes that are decoded."""
        changed = sample.content and sample.content != reading.content
        sample.content = reading.content
        if changed:
            header = reading.probe()
            _adjust(sample, (header.width, header.height), header.alpha)

    def _claim(self, sample: Planned, only: tuple[str, int] | None) -> list[tuple[str, int, bytes]]:
        with self._lock:
            found = [entry for entry in self.missing(sample) if only is None or entry[:2] == only]
            self._claimed.update(key for _, _, key in found)
            if len(self._claimed) > self._many:  # what is stored by now is found without a claim
                self._claimed = {key for key in self._claimed if not self._has(key)}
                self._many = max(_CLAIMED, 2 * len(self._claimed))
        return found

    def _make(self, sample: Planned, picture: Picture, claimed: list[tuple[str, int, bytes]], result: Prepared) -> None:
        placement = sample.placement()
        mask = self._mask(sample, picture) if any(name == "mask" for name, _, _ in claimed) else None
        latent = placement.height // self._recipe.downscale, placement.width // self._recipe.downscale
        for name, variant, key in claimed:
            flip = self._recipe.flips(sample)[variant]
            if name == "latent":
                result.pictures.append((key, render_image(picture, placement, flip)))
            elif name == "mask":
                result.entries.append((key, render_mask(mask, placement, flip, latent), "mask"))
            elif name == THUMBNAIL:
                result.entries.append((key, encode_thumbnail(picture, placement, self._recipe.thumbnail), THUMBNAIL))

    def _mask(self, sample: Planned, picture: Picture) -> Image.Image | None:
        if sample.item.mask is None:
            return picture.alpha if uses_alpha(sample) else None
        _, data = read_bytes(sample.item.mask.path)
        if content_hash(data) != sample.item.mask.content:
            raise Unusable(f"its mask {sample.item.mask.name} changed during the run; encode again")
        return decode_mask(data, picture.size)


def _adjust(sample: Planned, size: tuple[int, int], alpha: bool) -> None:
    sample.alpha = alpha
    if not sample.resize(size):
        raise Unusable(f"{size[0]} × {size[1]} is too small for the dataset's step")


def _remember(sample: Planned, reading: Reading, facts: Facts) -> Remembered | None:
    picture = sample.item.picture
    if not isinstance(picture, FilePicture) or reading.stamp is None:
        return None
    return picture.directory, picture.name, reading.stamp, facts
