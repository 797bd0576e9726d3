"""The recipe of a dataset: which entries each planned sample has, and their keys. All that decides a key is here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from json.encoder import encode_basestring_ascii as _quote
from typing import Any

from ...errors import CacheError, Unusable
from ..sources import (
    MASK_VERSION,
    RENDER_VERSION,
    THUMBNAIL,
    Item,
    Origin,
    Placement,
    Reading,
    Transform,
    bucket_sizes,
    place_image,
)
from .encoders import Encoder, Surroundings

VERSION = 1  # of the way keys are made
Keys = dict[str, list[bytes]]  # field → the key of each variant


def origin_name(set_name: str, name: str, part: int) -> str:
    """The name of a sample in the memory of the sources."""
    return f"{set_name}/{name}#{part}"


@dataclass(slots=True)
class Planned:
    """One sample before encoding: an item at one of its sizes.

    Files may change until they are decoded, so content, size and alpha follow the file: only `follow` and `adjust`
    change them, called by whichever thread prepares the sample.
    """

    item: Item
    transform: Transform
    part: int  # which of the item's sizes
    target: tuple[int, int]
    size: tuple[int, int]
    content: bytes  # empty while the file is not hashed
    alpha: bool

    @property
    def name(self) -> str:
        return self.item.name

    @property
    def origin(self) -> str:
        """The sample's name in the memory of the sources, whatever its settings are."""
        return origin_name(self.item.source.set, self.item.name, self.part)

    @property
    def lacks_mask(self) -> bool:
        """Masks are on, and this image has none."""
        masks = self.item.source.masks
        return masks.mode != "none" and self.item.mask is None and not (masks.alpha and self.alpha)

    @property
    def masked_by_alpha(self) -> bool:
        """Whether the sample's mask is the alpha channel of its image."""
        return self.item.mask is None and self.item.source.masks.alpha and self.alpha

    @property
    def mask_content(self) -> bytes:
        """The hash of the file that has the mask; empty without a mask."""
        if self.item.mask is not None:
            return self.item.mask.content
        return self.content if self.masked_by_alpha else b""

    @property
    def flips(self) -> list[bool]:
        return [False, True] if self.transform.flip else [False]

    def placement(self) -> Placement:
        return place_image(self.size, self.target, self.transform, self.content)

    def follow(self, reading: Reading) -> None:
        """Use the bytes as they are now: the file may have changed since it was scanned."""
        changed = self.content and self.content != reading.content
        self.content = reading.content
        if changed:
            header = reading.probe()
            self.adjust((header.width, header.height), header.alpha)

    def adjust(self, size: tuple[int, int], alpha: bool) -> None:
        """Use the size and transparency that were found when reading the file."""
        self.alpha = alpha
        if size == self.size:
            return
        found = bucket_sizes(*size, self.transform)
        if not found:
            raise Unusable(f"{size[0]}×{size[1]} is too small for a step of {self.transform.step}")
        self.size, self.target = size, found[min(self.part, len(found) - 1)]


@dataclass(frozen=True)
class Recipe:
    """How entries are made. The identities of the encoders are read once, so a recipe is valid for one run."""

    image_encoder: str | None
    text_encoder: str | None
    downscale: int
    thumbnail: int  # side in pixels; 0: none
    background: tuple[int, int, int]
    surroundings: Surroundings

    @classmethod
    def of_texts(cls, encoder: Encoder) -> Recipe:
        """A recipe for captions alone. Their keys depend on nothing else."""
        return cls(None, encoder.identity, 1, 0, (0, 0, 0), getattr(encoder, "surroundings", Surroundings()))

    @property
    def identity(self) -> list[Any]:
        """Equal for two recipes that make the same entries from the same sources."""
        settings = [self.downscale, self.thumbnail, self.background]
        return [self.image_encoder, self.text_encoder, *settings, self.surroundings.stamp]

    def check(self, transform: Transform) -> None:
        if self.image_encoder is not None and transform.step % self.downscale:
            raise CacheError(
                f"step = {transform.step}: not a multiple of {self.downscale}, the downscale factor of this VAE; "
                f"use a multiple of {self.downscale}"
            )

    def keys(self, sample: Planned, placement: Placement) -> Keys:
        """The keys of a sample whose content is known."""
        return {**self.image_keys(sample, placement), **self.text_keys(sample)}

    def text_keys(self, sample: Planned) -> Keys:
        if self.text_encoder is None:
            return {}
        return {"conditioning": [self.conditioning_key(text) for text in sample.item.captions]}

    def conditioning_key(self, caption: str) -> bytes:
        assert self.text_encoder is not None, "a conditioning without a text encoder"
        return _conditioning_key(caption, self.text_encoder + self.surroundings.of(caption))

    def image_keys(self, sample: Planned, placement: Placement) -> Keys:
        assert sample.content, "the content of the image is not known yet"
        content = sample.content.hex()
        background = self.background if sample.alpha else None
        views = [_view(placement, flip, background) for flip in sample.flips]
        found: Keys = {}
        if self.image_encoder is not None:
            encoder = _quote(self.image_encoder)
            found["latent"] = [_key("latent", f'"{content}",{view},{encoder}') for view in views]
        if sample.item.source.masks.mode != "none":
            found["mask"] = [self._mask_key(sample, view) for view in views]
        if self.thumbnail:
            found[THUMBNAIL] = [_key("thumbnail", f'"{content}",{views[0]},{self.thumbnail}')]
        return found

    def variants(self, sample: Planned) -> dict[str, int]:
        """The number of variants per field; the sample's content need not be known."""
        flips = len(sample.flips)
        masked = sample.item.source.masks.mode != "none"
        counts = {
            "latent": flips if self.image_encoder is not None else 0,
            "mask": flips if masked else 0,
            THUMBNAIL: 1 if self.thumbnail else 0,
            "conditioning": len(sample.item.captions) if self.text_encoder is not None else 0,
        }
        return {name: count for name, count in counts.items() if count}

    def origins(self, sample: Planned) -> dict[str, Origin]:
        """What each field's entries are made of, to explain later changes."""
        view = repr([sample.placement().identity(), sample.flips])
        captions = "\n".join(sample.item.captions)
        made = {}
        if self.image_encoder is not None:
            made["latent"] = Origin(sample.content.hex(), view, self.image_encoder)
        if self.text_encoder is not None:
            content = _conditioning_key(captions, self.surroundings.of(captions))
            made["conditioning"] = Origin(content.hex(), "", self.text_encoder)
        if sample.item.source.masks.mode != "none":
            made["mask"] = Origin(sample.mask_content.hex(), view, str(self.downscale))
        if self.thumbnail:
            made[THUMBNAIL] = Origin(sample.content.hex(), view, str(self.thumbnail))
        return made

    def describe(self) -> dict[str, str | None]:
        """The identities of the encoders, as recorded in the manifest."""
        return {"image": self.image_encoder, "text": self.text_encoder}

    def _mask_key(self, sample: Planned, view: str) -> bytes:
        content, downscale = sample.mask_content, self.downscale
        if not content:  # all ones: one entry per size
            width, height = sample.target
            return _key("mask", f'"full",{width // downscale},{height // downscale}')
        return _key("mask", f'"{content.hex()}",{view},{downscale},{MASK_VERSION}')


def _conditioning_key(caption: str, encoder: str) -> bytes:
    return _key("conditioning", f"{_quote(caption)},{_quote(encoder)}")


def _view(placement: Placement, flip: bool, background: tuple[int, int, int] | None) -> str:
    """What decides the pixels besides the file: placement, flip, and the background if it can be seen."""
    color = "null" if background is None else _list(background)
    return f"[{_list(placement.identity())},{'true' if flip else 'false'},{color},{RENDER_VERSION}]"


def _key(field: str, parts: str) -> bytes:
    # Canonical JSON, assembled by hand: a run over a large dataset makes a million keys.
    return blake2b(f'[{VERSION},"{field}",{parts}]'.encode(), digest_size=16).digest()


def _list(numbers: Iterable[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"
