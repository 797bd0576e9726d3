"""What the last generation contains and the next one would lack: removed samples, and folders that are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import CacheError
from ...quantity import plural
from ..format import Manifest
from ..read import Cache
from ..sources import THUMBNAIL, Excluded, Note, Origin, Source, SourceMemory, few_names, normal_form
from ..upkeep import missing_folders
from .recipe import Planned, Recipe, origin_name
from .survey import Layout

_OF_IMAGES = ("latent", THUMBNAIL)  # fields made of the image alone; images without a mask share one mask


@dataclass(frozen=True)
class Losses:
    """What is lost. `removed` are names of samples.

    `missing` are folders of a source that had samples and have none now, or have some that cannot be read now.
    """

    removed: list[str] = field(default_factory=list)
    missing: dict[str, int] = field(default_factory=dict)
    unreadable: list[Excluded] = field(default_factory=list)  # samples of the last generation
    unmasked: dict[str, int] = field(default_factory=dict)  # folders of images that had masks and have none now
    notes: list[Note] = field(default_factory=list)


def find_losses(
    before: Cache | None, sources: Sequence[Source], layout: Layout, recipe: Recipe, memory: SourceMemory
) -> Losses:
    """Compare the samples of the last generation with those planned. A renamed image is not a loss."""
    if before is None:
        return Losses()
    old = {normal_form(before.source(i)): i for i in range(len(before) - 1, -1, -1)}
    now = {normal_form(sample.name): sample for sample in layout.samples}
    lost = _without_renamed(before, old, now, recipe, memory)
    unreadable = find_unreadable({name: before.source(old[name]) for name in lost}, layout.excluded)
    broken = {normal_form(problem.source) for problem in layout.excluded if not problem.unreadable}
    # Images that cannot be used are reported one by one. Their folder is there.
    populated, gone = {_folder(name) for name in (*now, *broken)}, Counter(_folder(name) for name in lost)
    missing = {
        folder: count
        for folder, count in gone.items()
        if folder not in populated and any(source.covers(folder) for source in sources)
    }
    # A folder stays missing until it has images again or leaves the sources.
    waiting = {_folder(normal_form(problem.source)) for problem in layout.excluded if problem.unreadable}
    for folder, count in missing_folders(before.manifest).items():
        if folder not in populated - waiting and any(source.covers(folder) for source in sources):
            missing.setdefault(folder, count)
    listed = broken | {normal_form(problem.source) for problem in unreadable}
    removed = [before.source(old[name]) for name in lost if name not in listed]
    masks = _lost_masks(before, old, now, recipe, memory)
    notes = list(_lost_parts(before, old, now, masks))
    return Losses(sorted(removed), count_missing(missing, unreadable), unreadable, _all_lost(masks, now), notes)


def find_unreadable(names: Mapping[str, str], excluded: Iterable[Excluded]) -> list[Excluded]:
    """The samples, by the normal form of their name, whose file, or a folder above it, cannot be read now."""
    reasons = {normal_form(problem.source): problem.reason for problem in excluded if problem.unreadable}
    found = []
    for form, name in sorted(names.items()) if reasons else ():
        place = form
        while place and place not in reasons:
            place = _folder(place)
        if place:
            found.append(Excluded(name, reasons[place], unreadable=True))
    return found


def count_missing(missing: Mapping[str, int], unreadable: Iterable[Excluded]) -> dict[str, int]:
    """Missing folders, with those that have unreadable samples: the entries of these are kept too."""
    found = Counter(_folder(normal_form(problem.source)) for problem in unreadable)
    return dict(sorted({**found, **missing}.items()))


def refuse_unreadable(unreadable: Sequence[Excluded]) -> None:
    """Refuse to publish without samples of the last generation that may be intact."""
    if unreadable:
        first = unreadable[0]
        others = f" (and {plural(len(unreadable) - 1, 'other')})" if len(unreadable) > 1 else ""
        raise CacheError(
            f"{first.source}{others}: in the last generation, but unusable now: {first.reason}; is a disk not mounted "
            "or failing? Make it readable, or encode without it by --allow-missing (on Encode Dataset: allow_missing). "
            "Nothing was changed"
        )


def refuse_missing(losses: Losses, manifest: Manifest | None) -> None:
    """Refuse to publish without a folder that had samples or masks in the last generation."""
    refuse_unreadable(losses.unreadable)
    _refuse_unmasked(losses.unmasked)
    new = {folder: count for folder, count in losses.missing.items() if folder not in missing_folders(manifest)}
    if new:
        first, count = next(iter(new.items()))
        others = f" (and {plural(len(new) - 1, 'other folder')})" if len(new) > 1 else ""
        raise CacheError(
            f"{first}{others}: had {plural(count, 'sample')} in the last generation and has none now; is a disk not "
            "mounted? Mount it, or encode without it by --allow-missing (on Encode Dataset: allow_missing). Nothing "
            "was changed"
        )


def _refuse_unmasked(folders: Mapping[str, int]) -> None:
    if folders:
        folder, count = next(iter(folders.items()))
        had = "1 image had a mask" if count == 1 else f"{count:,} images had masks"
        others = f" (and {plural(len(folders) - 1, 'other folder')})" if len(folders) > 1 else ""
        raise CacheError(
            f"{folder}{others}: {had} in the last generation and none has now; is the folder of masks missing? "
            "Restore it, or encode without it by --allow-missing (on Encode Dataset: allow_missing). "
            "Nothing was changed"
        )


def _without_renamed(
    before: Cache, old: dict[str, int], now: dict[str, Planned], recipe: Recipe, memory: SourceMemory
) -> list[str]:
    """The old names that are gone, except those whose image is there under a new name.

    The same image has the same content, or the same keys if the memory of its content is gone.
    """
    gone = [name for name in old if name not in now]
    fresh = {name: sample for name, sample in now.items() if name not in old} if gone else {}
    if not fresh:
        return gone
    marked: dict[bytes, list[str]] = {}
    for name, sample in fresh.items():
        for mark in _marks(recipe, sample):
            marked.setdefault(mark, []).append(name)
    samples = {name: before.sample(old[name]) for name in gone}
    origins = {name: origin_name(sample.set, sample.source, 0) for name, sample in samples.items()}
    made = memory.origins(origins.values())
    lost, taken = [], set()
    for name in gone:
        stored, known = before.keys(old[name]), made.get(origins[name], {})
        marks = [key for field in _OF_IMAGES for key in stored.get(field, ())]
        marks += [bytes.fromhex(known[field].content) for field in _OF_IMAGES if field in known]
        for names in (marked.get(mark, []) for mark in marks):
            while names and names[-1] in taken:
                names.pop()
            if names:
                taken.add(names.pop())
                break
        else:
            lost.append(name)
    return lost


def _marks(recipe: Recipe, sample: Planned) -> Iterator[bytes]:
    """What identifies an image: its content, and the keys that no other image has."""
    if sample.content:
        yield sample.content
        keys = recipe.image_keys(sample, sample.placement())
        yield from (key for field in _OF_IMAGES for key in keys.get(field, ()))


def _lost_parts(before: Cache, old: dict[str, int], now: dict[str, Planned], masks: list[Planned]) -> Iterator[Note]:
    """Notes on samples that had a caption or a mask in the last generation and have none now."""
    same = [(old[name], sample) for name, sample in now.items() if name in old]
    bare = [sample.name for i, sample in same if not any(sample.item.captions) and any(before.captions(i))]
    for what, names in (("caption", bare), ("mask", [sample.name for sample in masks])):
        if names:
            yield gone_note(what, names)


def gone_note(what: str, names: list[str]) -> Note:
    """Samples that lost a caption or a mask."""
    count = f"1 {what} is" if len(names) == 1 else f"{len(names):,} {what}s are"
    return Note("", f"{count} gone since the last generation, of {few_names(names)}")


def _lost_masks(
    before: Cache, old: dict[str, int], now: dict[str, Planned], recipe: Recipe, memory: SourceMemory
) -> list[Planned]:
    """Samples that had the mask of a file in the last generation and have none now."""
    bare = [
        (old[name], sample)
        for name, sample in now.items()
        if name in old and sample.item.source.masks.mode != "none" and sample.item.mask is None and sample.content
    ]
    made = memory.origins({sample.origin for _, sample in bare})
    return [sample for i, sample in bare if _had_mask(before.keys(i), sample, recipe, made.get(sample.origin, {}))]


def _had_mask(stored: Mapping[str, Sequence[bytes]], sample: Planned, recipe: Recipe, made: dict[str, Origin]) -> bool:
    """From the keys, if the image has the same place as before; else from the memory, which names the mask's file."""
    keys = recipe.image_keys(sample, sample.placement())
    if "mask" in stored and stored.get("latent") == keys.get("latent"):
        return list(stored["mask"]) != keys["mask"]
    mask, image = made.get("mask"), made.get("latent")
    return mask is not None and image is not None and mask.content not in ("", image.content)


def _all_lost(masks: list[Planned], now: dict[str, Planned]) -> dict[str, int]:
    """Folders of images whose masks, in a folder of their own, are all gone."""
    gone = Counter(_folder(sample.name) for sample in masks if sample.item.source.masks.parallel)
    left = {_folder(sample.name) for sample in now.values() if sample.item.mask is not None} if gone else set()
    return {folder: count for folder, count in sorted(gone.items()) if folder not in left}


def _folder(name: str) -> str:
    return name.rpartition("/")[0]
