"""Plan: a dataset that is not encoded yet. It says what it will hold, and makes entries when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import CacheError
from ..read import Batch, Bucket, Fields, Sample
from ..sources import Counts, Source, State, Transform, check_sets, open_state
from ..write import CacheWriter, SampleFacts
from .encoders import Encoder, ImageEncoder, Surroundings
from .forecast import forecast
from .phase import Failure, Phase
from .prepare import Preparer
from .recipe import Planned, Recipe
from .report import PlanReport
from .survey import Layout, Survey


@dataclass(frozen=True)
class Settings:
    """How a plan is encoded. Only transform, thumbnail and background decide what entries hold."""

    transform: Transform = field(default_factory=Transform)
    batch_size: int = 4
    text_batch_size: int = 32
    thumbnail: int = 128  # longer side in pixels; 0: none
    background: tuple[int, int, int] = (255, 255, 255)  # behind transparent pictures
    threads: int = 0  # that decode; 0: two more than there are processors, at most 8
    trust: bool = False  # serve known files without looking at them
    check: bool = False  # compare stored bytes with their checksums first, and encode damaged entries again

    def __post_init__(self) -> None:
        for name in ("threads", "thumbnail"):
            if getattr(self, name) < 0:
                raise CacheError(f"{name}: found {getattr(self, name)}, expected 0 or more")

    @property
    def decoders(self) -> int:
        return self.threads or min(8, (os.cpu_count() or 1) + 2)


def make_plan(
    sources: Sequence[Source] | Source,
    *,
    image_encoder: ImageEncoder | None = None,
    text_encoder: Encoder | None = None,
    settings: Settings | None = None,
) -> Plan:
    """Plan a dataset. Nothing is read yet but the settings."""
    return Plan(
        [sources] if isinstance(sources, Source) else list(sources), image_encoder, text_encoder, settings or Settings()
    )


class Plan(Sequence[Sample]):
    """A dataset to be. Its sources are looked at once, when first needed; a new plan looks again."""

    def __init__(
        self, sources: list[Source], images: ImageEncoder | None, texts: Encoder | None, settings: Settings
    ) -> None:
        check_sets(sources)
        if images is None and texts is None:
            raise CacheError("a plan needs an image encoder, a text encoder, or both")
        self.sources, self.settings = sources, settings
        self.image_encoder, self.text_encoder = images, texts
        self.counts = Counts()
        self._memory = open_state(None)  # what was learnt before there was a cache to remember it for
        self._layout: Layout | None = None

    @cached_property
    def recipe(self) -> Recipe:
        images, texts = self.image_encoder, self.text_encoder
        recipe = Recipe(
            images.identity if images is not None else None,
            texts.identity if texts is not None else None,
            images.downscale if images is not None else 8,
            self.settings.thumbnail,
            self.settings.background,
            getattr(texts, "surroundings", Surroundings()),
        )
        for source in self.sources:
            recipe.check(source.transform or self.settings.transform)
        return recipe

    def encoder_names(self) -> Iterator[tuple[str, str]]:
        """What people call the encoders, where these have names: ("image", …), ("text", …)."""
        for part, encoder in (("image", self.image_encoder), ("text", self.text_encoder)):
            yield part, str(getattr(encoder, "name", ""))

    @cached_property
    def survey(self) -> Survey:
        return Survey(self.sources, self.settings.transform, self.settings.trust)

    @property
    def layout(self) -> Layout:
        """The samples, as they were last worked out."""
        if self._layout is None:
            self.lay_out(self._memory, hash_new=False)
        return self._layout

    def lay_out(self, state: State, *, hash_new: bool, check: Callable[[], None] = lambda: None) -> Layout:
        """Work the samples out with the help of a state, which learns what this plan knows."""
        state.adopt(self._memory)
        options = {"hash_new": hash_new, "threads": self.settings.decoders, "check": check}
        self._layout = self.survey.lay_out(state, self.counts, **options)
        return self._layout

    def report(self, to: str | Path | None = None) -> PlanReport:
        """What encoding to this path would do: what is encoded and why, reused, excluded, and the bytes expected."""
        return forecast(self, to)

    # The interface of a dataset

    @property
    def fields(self) -> tuple[str, ...]:
        sample = self.layout.samples[0] if self.layout.samples else None
        names = self._names(sample) if sample else ()
        return (*names, "mask") if "mask" not in names and self._has_masks else names

    @property
    def sets(self) -> dict[str, dict[str, Any]]:
        return {source.set: source.facts() for source in self.sources}

    def __len__(self) -> int:
        return len(self.layout.samples)

    def __getitem__(self, i: int) -> Sample:  # type: ignore[override]
        return self.sample(i)

    def __iter__(self) -> Iterator[Sample]:
        return (self.sample(i) for i in range(len(self)))

    def sample(self, i: int, variants: Mapping[str, int] | None = None) -> Sample:
        """Sample `i`. Its entries are encoded when they are looked at, each time anew; a cache keeps them."""
        planned = self.layout.samples[i]
        if planned.item.source.transform.crop == "random":
            self._follow(planned)
        chosen, item = variants or {}, planned.item
        names = self._names(planned)
        return Sample(
            index=range(len(self))[i],
            fields=Fields(names, lambda name: self._make(planned, name, chosen.get(name, 0))),
            caption=item.captions[chosen.get("conditioning", 0)],
            captions=item.captions,
            source=planned.name,
            original_size=planned.size,
            crop=planned.placement().crop,
            repeats=item.repeats,
            weight=item.source.weight,
            set=item.source.set,
        )

    def write(self, writer: CacheWriter, i: int) -> int:
        """Store sample `i` with a writer. Safe from several threads: of those that need one entry, one makes it."""
        planned, item = self.layout.samples[i], self.layout.samples[i].item
        self._follow(planned)
        placement = planned.placement()
        keys = self.recipe.keys(planned, placement)
        for name, variants in keys.items():
            for variant, key in enumerate(variants):
                writer.once(key, partial(self._make, planned, name, variant), name)
        facts = planned.size, placement.crop, item.repeats, item.source.weight, item.source.set
        return writer.sample(keys, SampleFacts(item.captions, planned.name, *facts))

    def read_batch(
        self,
        indices: Sequence[int],
        *,
        variants: Mapping[str, Sequence[int]] | None = None,
        fields: Sequence[str] | None = None,
        buffers: Any = None,
    ) -> Batch:
        """Encode samples of one bucket, now."""
        picks = [{name: numbers[row] for name, numbers in (variants or {}).items()} for row in range(len(indices))]
        samples = [self.sample(int(i), pick) for i, pick in zip(indices, picks)]
        names = [name for name in (self.fields if fields is None else fields) if fields or name != "thumbnail"]
        rows = {name: [sample.fields.get(name) for sample in samples] for name in names}
        latents = rows.get("latent")
        stacked = torch.cat([latent["samples"] for latent in latents]) if latents and None not in latents else None
        return Batch([int(i) for i in indices], stacked, rows, lambda: [sample.caption for sample in samples])

    def buckets(self) -> dict[Bucket, np.ndarray]:
        """The samples of every bucket. Where the encoder does not say what its latents are like, one is made."""
        numbers: dict[tuple[int, int], list[int]] = {}
        for at, sample in enumerate(self.layout.samples):
            numbers.setdefault(sample.target, []).append(at)
        return {self._bucket(size): np.array(found, np.int64) for size, found in numbers.items()}

    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of every sample's latent, [1, C, (T,) H, W]."""
        return [(1, *self._bucket(sample.target).shape) for sample in self.layout.samples]

    def variants(self, field: str) -> np.ndarray:
        """How many variants every sample has of a field."""
        counts = [self.recipe.variants(sample).get(field, 0) for sample in self.layout.samples]
        return np.array(counts, np.uint32)

    def source(self, i: int) -> str:
        return self.layout.samples[i].name

    def captions(self, i: int) -> list[str]:
        return list(self.layout.samples[i].item.captions)

    def column(self, name: str) -> np.ndarray:
        """A column over all samples: bucket, set, repeats, weight, original_size or crop."""
        samples, sets = self.layout.samples, list(self.sets)
        sizes = {size: n for n, size in enumerate(dict.fromkeys(sample.target for sample in samples))}
        columns = {
            "bucket": lambda: np.array([sizes[s.target] for s in samples], np.uint32),
            "set": lambda: np.array([sets.index(s.item.source.set) for s in samples], np.uint32),
            "repeats": lambda: np.array([s.item.repeats for s in samples], np.uint32),
            "weight": lambda: np.array([s.item.source.weight for s in samples], np.float32),
            "original_size": lambda: np.array([s.size for s in samples], np.int32).reshape(-1, 2),
            "crop": lambda: np.array([s.placement().crop for s in samples], np.int32).reshape(-1, 4),
        }
        return columns[name]()

    def _follow(self, planned: Planned) -> None:
        """Read a picture whose content is not known yet: keys and random crops depend on it."""
        planned.content = planned.content or planned.item.picture.read().content

    @property
    def _has_masks(self) -> bool:
        return any(source.masks.mode != "none" for source in self.sources)

    def _names(self, sample: Planned) -> tuple[str, ...]:
        return tuple(self.recipe.variants(sample))

    def _bucket(self, size: tuple[int, int]) -> Bucket:
        lead, dtype = self._latent_form
        scale = self.recipe.downscale
        return Bucket((*lead, size[1] // scale, size[0] // scale), dtype)

    @cached_property
    def _latent_form(self) -> tuple[tuple[int, ...], torch.dtype]:
        """The axes of a latent between the batch's and the spatial ones, and its type."""
        encoder = self.image_encoder
        if encoder is None:
            raise CacheError("this plan has no image encoder, so its samples have no latents and no buckets")
        side = max(self.recipe.downscale, self.settings.transform.step)
        with encoder.lease():
            latent = encoder.encode([torch.zeros(side, side, 3)])[0]["samples"]
        return tuple(latent.shape[1:-2]), latent.dtype

    def _make(self, planned: Planned, name: str, variant: int) -> Any:
        if name == "conditioning":
            return self._encode(self.text_encoder, planned.item.captions[variant], planned)
        preparer = Preparer(self.recipe, lambda key: False)
        prepared = preparer(planned, only=(name, variant))
        if prepared.problem:
            raise CacheError(f"{planned.name}: {prepared.problem}")
        if name == "latent":
            return self._encode(self.image_encoder, prepared.pictures[0][1], planned)
        return prepared.entries[0][1]

    def _encode(self, encoder: Encoder, item: Any, planned: Planned) -> Any:
        with Phase(encoder, 1) as phase:
            made = next(phase.encode([item]))[0]
        if isinstance(made, Failure):
            raise CacheError(f"{planned.name}: {made.reason}")
        return made
