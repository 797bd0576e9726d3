"""A plan: a dataset that is not encoded yet. It reports what encoding would do, and makes entries for previews."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ...errors import CacheError
from ..format import Place
from ..read import Bucket, Fields, Sample, Samples
from ..sources import THUMBNAIL, Counts, Note, Source, SourceMemory, bucket_sizes, check_sets, open_memory
from .encoders import Encoder, Failure, ImageEncoder, Phase, Surroundings
from .missing import find_losses, refuse_missing
from .prepare import Preparer
from .recipe import Keys, Planned, Recipe
from .report import MissingEntry, PlanReport, Report, explain
from .settings import Settings
from .survey import Layout, Survey, refuse_bare_class_images
from .target import Target

EMPTY_CAPTION = "empty caption"  # the name of the entry; training reads it for caption dropout
_THUMBNAIL_BYTES = 5_000  # of a thumbnail of 128×128 pixels, roughly


def make_plan(
    sources: Sequence[Source] | Source,
    *,
    image_encoder: ImageEncoder | None = None,
    text_encoder: Encoder | None = None,
    settings: Settings | None = None,
) -> Plan:
    """Plan a dataset. Only the settings are checked; nothing is read yet."""
    return Plan(
        [sources] if isinstance(sources, Source) else list(sources), image_encoder, text_encoder, settings or Settings()
    )


def named_captions(plan: Plan) -> Iterator[tuple[str, str]]:
    """Captions that the dataset has by name: the empty one, for caption dropout, and the prompts of class sets."""
    if plan.text_encoder is not None:
        yield EMPTY_CAPTION, ""
        yield from ((f"prompt of {s.set}", s.prompt) for s in plan.sources if s.prompt is not None)


def missing_parts(images: ImageEncoder | None, texts: Encoder | None) -> list[str]:
    """What a dataset of these encoders will lack, one sentence each."""
    missing = []
    if images is None:
        missing.append(
            "there will be no latents, because no VAE is given: the dataset cannot be trained on; connect a VAE to "
            "Encode Dataset (--vae)"
        )
    if texts is None:
        missing.append(
            "there will be no conditionings, because no CLIP is given: captions are not encoded, and the dataset "
            "cannot be trained on; connect a CLIP to Encode Dataset (--clip)"
        )
    return missing


class Plan(Samples):
    """What to encode and how. The sources are listed once, when first needed; a new plan lists them again."""

    def __init__(
        self, sources: list[Source], images: ImageEncoder | None, texts: Encoder | None, settings: Settings
    ) -> None:
        check_sets(sources)
        if images is None and texts is None:
            raise CacheError("a plan needs an image encoder, a text encoder, or both")
        self.sources, self.settings = sources, settings
        self.image_encoder, self.text_encoder = images, texts
        self.counts = Counts()
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

    def encoder_names(self) -> dict[str, str]:
        """The names of encoders that have one, by "image" and "text"."""
        encoders = {"image": self.image_encoder, "text": self.text_encoder}
        names = {part: str(getattr(encoder, "name", "")) for part, encoder in encoders.items()}
        return {part: name for part, name in names.items() if name}

    @cached_property
    def _memory(self) -> SourceMemory:
        """Of files read before there was a cache to remember them for. It is closed with the plan."""
        memory = open_memory(None)
        weakref.finalize(self, memory.close)
        return memory

    @cached_property
    def survey(self) -> Survey:
        return Survey(self.sources, self.settings.transform, self.settings.trust, self.settings.allow_missing)

    @property
    def layout(self) -> Layout:
        """The samples, as last computed."""
        return self._layout or self.lay_out(self._memory, hash_new=False)

    def lay_out(self, memory: SourceMemory, *, hash_new: bool, check: Callable[[], None] = lambda: None) -> Layout:
        """Compute the samples with a memory, which first adopts the records of this plan."""
        if memory is not self._memory:
            memory.adopt(self._memory)
        self._layout = self.survey.lay_out(
            memory, self.counts, hash_new=hash_new, threads=self.settings.decoders, check=check
        )
        return self._layout

    def report(self, to: Place | None = None) -> PlanReport:
        """What encoding to this path would do: entries to encode and why, reused, excluded, and the expected size."""
        return _forecast(self, Target(to))

    # The interface of a dataset, for previews

    @property
    def fields(self) -> tuple[str, ...]:
        sample = self.layout.samples[0] if self.layout.samples else None
        names = tuple(self.recipe.variants(sample)) if sample else ()
        masks = any(source.masks.mode != "none" for source in self.sources)
        return (*names, "mask") if "mask" not in names and masks else names

    @property
    def sets(self) -> dict[str, dict[str, object]]:
        return {source.set: source.facts() for source in self.sources}

    def __len__(self) -> int:
        return len(self.layout.samples)

    def __getitem__(self, i: int) -> Sample:
        return self.sample(i)

    def __iter__(self) -> Iterator[Sample]:
        return (self.sample(i) for i in range(len(self)))

    def sample(self, i: int, variants: Mapping[str, int] | None = None) -> Sample:
        """Sample `i`. Its entries are encoded on each access; a cache keeps them."""
        planned = self.layout.samples[i]
        if planned.transform.crop == "random" and not planned.content:
            planned.follow(planned.item.image.read())  # random crops depend on the content
        chosen, item = variants or {}, planned.item
        return Sample(
            index=range(len(self))[i],
            fields=Fields(
                tuple(self.recipe.variants(planned)), lambda name: self._make(planned, name, chosen.get(name, 0))
            ),
            caption=item.captions[chosen.get("conditioning", 0)],
            captions=item.captions,
            source=planned.name,
            original_size=planned.size,
            crop=planned.placement().crop,
            repeats=item.repeats,
            weight=item.source.weight,
            set=item.source.set,
        )

    @property
    def encoded(self) -> bool:
        return False

    def buckets(self) -> dict[Bucket, np.ndarray]:
        """The samples of each bucket. One blank image is encoded to learn the shape of latents."""
        numbers: dict[tuple[int, int], list[int]] = {}
        for at, sample in enumerate(self.layout.samples):
            numbers.setdefault(sample.target, []).append(at)
        return {self._bucket(size): np.array(found, np.int64) for size, found in numbers.items()}

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

    def _bucket(self, size: tuple[int, int]) -> Bucket:
        lead, dtype = self._latent_form
        scale = self.recipe.downscale
        return Bucket((*lead, size[1] // scale, size[0] // scale), dtype, pixels=size)

    def encode_blank(self) -> tuple[dict[str, torch.Tensor], Any, tuple[int, int]]:
        """A latent of the training resolution, the conditioning of the empty caption, and the size of the image.

        To check whether a model fits the encoders. The latent has the right form, but is empty.
        """
        transform = self.settings.transform
        side = transform.resolutions[0]
        size = bucket_sizes(side, side, transform)[0]
        bucket = self._bucket(size)
        with Phase(self.text_encoder, 1) as phase:
            conditioning = next(phase.encode([""]))[0]
        if isinstance(conditioning, Failure):
            raise CacheError(f"the empty caption: {conditioning.reason}")
        return {"samples": torch.zeros(1, *bucket.shape, dtype=bucket.dtype)}, conditioning, size

    @cached_property
    def _latent_form(self) -> tuple[tuple[int, ...], torch.dtype]:
        """The axes of a latent between the batch axis and the spatial ones, and its dtype."""
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
        prepared = Preparer(self.recipe, lambda key: False)(planned, only=(name, variant))
        if prepared.problem:
            raise CacheError(f"{planned.name}: {prepared.problem}")
        if name == "latent":
            return self._encode(self.image_encoder, prepared.images[0][1], planned)
        return prepared.entries[0][1]

    def _encode(self, encoder: Encoder | None, item: Any, planned: Planned) -> Any:
        with Phase(encoder, 1) as phase:
            made = next(phase.encode([item]))[0]
        if isinstance(made, Failure):
            raise CacheError(f"{planned.name}: {made.reason}")
        return made


def compare(plan: Plan, layout: Layout, target: Target, memory: SourceMemory, report: Report) -> None:
    """Report what the last generation has and the plan lacks. Refuse to go on without a folder, unless allowed.

    Class images without captions are refused here too: a preview of the plan still shows them.
    """
    if plan.text_encoder is not None:
        refuse_bare_class_images(layout)
    losses = find_losses(target.cache, plan.sources, layout, plan.recipe, memory)
    if not plan.settings.allow_missing:
        refuse_missing(losses, target.before)
    report.removed, report.missing = losses.removed, losses.missing
    missing = [Note("", text) for text in missing_parts(plan.image_encoder, plan.text_encoder)]
    report.notes = [*missing, *report.notes, *losses.notes]


def _forecast(plan: Plan, target: Target) -> PlanReport:
    """What encoding to the target would do. Nothing is encoded."""
    if plan.settings.trust:
        target.check_trust(plan.recipe)
    report = PlanReport()
    with target.open_memory() as memory:
        layout = plan.lay_out(memory, hash_new=not target.is_empty)
        report.count(layout.samples)
        report.excluded, report.notes = layout.excluded, layout.notes
        compare(plan, layout, target, memory, report)
        missing = _missing(plan, target, layout.samples, report)
        report.made = explain(missing, plan.recipe, memory, target.dropped)
    report.bytes_expected = _bytes_expected(plan, target, report, layout.samples)
    return report


def _missing(plan: Plan, target: Target, samples: list[Planned], report: PlanReport) -> list[MissingEntry]:
    """The entries to encode. Those that are reused, and images that are not hashed, are counted in the report."""
    recipe = plan.recipe
    missing: list[MissingEntry] = []
    seen: set[bytes] = set()

    def look_up(sample: Planned, keys: Keys) -> None:
        for field, variants in keys.items():
            for key in variants:
                if key in seen:
                    continue
                seen.add(key)
                if target.has(key):
                    report.reused[field] = report.reused.get(field, 0) + 1
                else:
                    missing.append((sample, field, key))

    for sample in samples:
        look_up(sample, recipe.text_keys(sample))
        if sample.content:
            look_up(sample, recipe.image_keys(sample, sample.placement()))
            continue
        report.unread += 1
        for field, count in recipe.variants(sample).items():
            if field != "conditioning":
                missing += [(sample, field, None)] * count
    named = {recipe.conditioning_key(caption) for _, caption in named_captions(plan)} if samples else set()
    for key in named - seen:  # of no sample: a run reports them with the first one
        look_up(samples[0], {"conditioning": [key]})
    return missing


def _bytes_expected(plan: Plan, target: Target, report: PlanReport, samples: list[Planned]) -> int | None:
    """Known if the encoders report the size of their results, or if the cache contains some already."""
    encoded = report.encoded
    total = encoded.get(THUMBNAIL, 0) * _THUMBNAIL_BYTES
    if encoded.get("latent") or encoded.get("mask"):
        pixel = _latent_pixel_bytes(plan.image_encoder, target)
        if pixel is None or not samples:
            return None
        area = sum(s.target[0] * s.target[1] for s in samples) / len(samples) / plan.recipe.downscale**2
        total += round(area * (pixel * encoded.get("latent", 0) + 2 * encoded.get("mask", 0)))
    if encoded.get("conditioning"):
        text = getattr(plan.text_encoder, "bytes_per_caption", None)
        if text is None:
            return None
        total += text * encoded["conditioning"]
    return total


def _latent_pixel_bytes(encoder: ImageEncoder | None, target: Target) -> int | None:
    channels, dtype = getattr(encoder, "channels", None), getattr(encoder, "dtype", torch.float32)
    if channels is None:
        bucket = next(iter(target.cache.buckets()), None) if target.cache is not None else None
        if bucket is None:
            return None
        channels, dtype = bucket.shape[0], bucket.dtype
    return channels * dtype.itemsize
