"""Recipe: which entries a sample consists of, and the keys they have. Everything that decides a key meets here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import CacheError
from ..sources import THUMBNAIL, Item, Origin, Placement, Transform, bucket_sizes, place_image
from . import keys
from .encoders import Surroundings

Keys = dict[str, list[bytes]]  # field → the key of each variant


@dataclass(slots=True)
class Planned:
    """One sample to be: an item at one of its sizes. The rest follows the file as it is when read."""

    item: Item
    part: int  # which of the item's sizes
    target: tuple[int, int]
    size: tuple[int, int]
    content: bytes
    alpha: bool

    @property
    def name(self) -> str:
        return self.item.name

    @property
    def origin(self) -> str:
        """What this sample is called in the state, whatever its settings are."""
        return f"{self.item.source.set}/{self.item.name}#{self.part}"

    @property
    def lacks_mask(self) -> bool:
        """Masks are asked for, and this picture has none."""
        masks = self.item.source.masks
        return masks.mode != "none" and self.item.mask is None and not (masks.alpha and self.alpha)

    def placement(self) -> Placement:
        return place_image(self.size, self.target, self.item.source.transform, self.content)

    def resize(self, size: tuple[int, int]) -> bool:
        """The file turned out to have another size. False if it has no place in the dataset at that size."""
        if size != self.size:
            found = bucket_sizes(*size, self.item.source.transform)
            if not found:
                return False
            self.size, self.target = size, found[min(self.part, len(found) - 1)]
        return True


@dataclass(frozen=True)
class Recipe:
    """How entries are made. Identities are asked for once, so a recipe is good for one run."""

    image_encoder: str | None
    text_encoder: str | None
    downscale: int
    thumbnail: int  # side in pixels; 0: none
    background: tuple[int, int, int]
    surroundings: Surroundings

    @property
    def identity(self) -> list[Any]:
        """Equal for two recipes that make the same of the same."""
        settings = [self.downscale, self.thumbnail, self.background]
        return [self.image_encoder, self.text_encoder, *settings, self.surroundings.stamp]

    def conditioning_key(self, caption: str) -> bytes:
        return keys.conditioning_key(caption, self.text_encoder + self.surroundings.of(caption))

    def check(self, transform: Transform) -> None:
        if self.image_encoder is not None and transform.step % self.downscale:
            raise CacheError(
                f"step: found {transform.step}, but a latent pixel of this encoder covers {self.downscale} pixels; "
                f"use a step that {self.downscale} divides"
            )

    def keys(self, sample: Planned, placement: Placement) -> Keys:
        """The keys of a sample whose content is known."""
        return {**self.picture_keys(sample, placement), **self.text_keys(sample)}

    def text_keys(self, sample: Planned) -> Keys:
        if self.text_encoder is None:
            return {}
        return {"conditioning": [self.conditioning_key(text) for text in sample.item.captions]}

    def picture_keys(self, sample: Planned, placement: Placement) -> Keys:
        assert sample.content, "the picture's content is not known yet"
        background = self.background if sample.alpha else None
        views = [keys.view_of(placement, flip, background) for flip in self.flips(sample)]
        found: Keys = {}
        if self.image_encoder is not None:
            found["latent"] = [keys.latent_key(sample.content, view, self.image_encoder) for view in views]
        if sample.item.source.masks.mode != "none":
            found["mask"] = [self._mask_key(sample, view) for view in views]
        if self.thumbnail:
            found[THUMBNAIL] = [keys.thumbnail_key(sample.content, views[0], self.thumbnail)]
        return found

    def variants(self, sample: Planned) -> dict[str, int]:
        """How many variants a sample has of each field; its content need not be known."""
        flips = len(self.flips(sample))
        masked = sample.item.source.masks.mode != "none"
        counts = {
            "latent": flips if self.image_encoder is not None else 0,
            "mask": flips if masked else 0,
            THUMBNAIL: 1 if self.thumbnail else 0,
            "conditioning": len(sample.item.captions) if self.text_encoder is not None else 0,
        }
        return {name: count for name, count in counts.items() if count}

    def flips(self, sample: Planned) -> list[bool]:
        return [False, True] if sample.item.source.transform.flip else [False]

    def origins(self, sample: Planned) -> dict[str, Origin]:
        """What each field's entries are made of, to explain a later change."""
        view = repr([sample.placement().identity(), self.flips(sample)])
        captions = "\n".join(sample.item.captions)
        made = {}
        if self.image_encoder is not None:
            made["latent"] = Origin(sample.content.hex(), view, self.image_encoder)
        if self.text_encoder is not None:
            content = keys.conditioning_key(captions, self.surroundings.of(captions))
            made["conditioning"] = Origin(content.hex(), "", self.text_encoder)
        if sample.item.source.masks.mode != "none":
            made["mask"] = Origin(_mask_content(sample).hex(), view, str(self.downscale))
        if self.thumbnail:
            made[THUMBNAIL] = Origin(sample.content.hex(), view, str(self.thumbnail))
        return made

    def describe(self) -> dict[str, Any]:
        return {"image": self.image_encoder, "text": self.text_encoder}

    def _mask_key(self, sample: Planned, view: str) -> bytes:
        content = _mask_content(sample)
        if not content:
            return keys.full_mask_key(*sample.target, self.downscale)
        return keys.mask_key(content, view, self.downscale)


def uses_alpha(sample: Planned) -> bool:
    """Whether the sample's mask is its picture's alpha channel."""
    return sample.item.mask is None and sample.item.source.masks.alpha and sample.alpha


def _mask_content(sample: Planned) -> bytes:
    if sample.item.mask is not None:
        return sample.item.mask.content
    return sample.content if uses_alpha(sample) else b""
