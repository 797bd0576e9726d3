"""What changed in a source since the last run, if that is little: a run then looks at those images only.

The memory has what each folder looked like when the published generation was encoded. If the same files are there and
a few of them have other stamps, every other sample is the one of the last generation, row by row. Whatever is not as
simple (files that came or went, masks, problems of any kind) is left to a run that looks at everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..format import Manifest
from ..index import SampleFacts
from ..read import Cache
from ..sources import (
    CHOICES,
    METADATA,
    UNSETTLED,
    Facts,
    FileRecord,
    Listing,
    Note,
    SourceMemory,
    folded_form,
    is_image,
    is_mask,
    read_records,
)
from .missing import gone_note
from .plan import Plan
from .recipe import Keys, Planned
from .report import EncodeReport
from .survey import Layout, refuse_bare_class_images
from .target import RUN, Target

MOST_CHANGES = 64  # images; with more, looking at everything costs little more
_EXACT = ("source", "original_size", "crop", "repeats", "set")
SPLICED = "spliced "  # before what stands for all samples, if a run that looked at changes made it
_GONE = "gone since the last generation"


@dataclass(frozen=True)
class Changes:
    """The samples that may have changed, with the numbers that they have in the last generation."""

    layout: Layout
    numbers: list[int]
    before: EncodeReport  # of the last run
    names: frozenset[str] = field(default_factory=frozenset)

    @property
    def kept(self) -> dict[str, int]:
        """By phase: how many items are reused without being looked at."""
        samples, entries = self.layout.samples, self.before.reused.get("conditioning", 0)
        captions = {text for sample in samples for text in sample.item.captions}
        return {"images": self.before.samples - len(samples), "captions": max(0, entries - len(captions))}


def remember_listings(plan: Plan, memory: SourceMemory, generation: str) -> None:
    """Keep what all folders looked like when this generation was encoded."""
    memory.remember_listings(plan.survey.basis(plan.recipe), plan.survey.listings, generation)


def find_changes(
    plan: Plan, target: Target, memory: SourceMemory, check: Callable[[], None] = lambda: None
) -> Changes | None:
    """The changes since the last run; None if everything must be looked at."""
    last, settings = memory.run(RUN), plan.settings
    if settings.trust or settings.check or target.before is None or target.lost or last is None:
        return None
    digests = memory.listed_digests(target.before.generation)
    if last[1] != target.before.generation or digests.pop("", b"") != plan.survey.basis(plan.recipe).encode():
        return None
    before = EncodeReport.from_json(last[2])
    if before.excluded or before.missing or not _is_simple(plan):
        return None
    changed = _changed_names(plan.survey.listings, memory, digests)
    if changed is None or sum(map(len, changed.values())) > MOST_CHANGES:
        return None
    check()
    layout = _lay_out(plan, changed, memory)
    numbers = None if layout is None or target.cache is None else _numbers(target.cache, layout.samples)
    if layout is None or numbers is None:
        return None
    if plan.text_encoder is not None:
        refuse_bare_class_images(layout)
    plan.counts.listed += sum(len(listing.names) for listing in plan.survey.listings)
    return Changes(layout, numbers, before, frozenset(sample.name for sample in layout.samples))


def spliced_digest(before: Manifest | None) -> str:
    """What stands for the samples of a generation that such a run published; else an empty text."""
    known = before.provenance.get(RUN) if before is not None else None
    found = known.get("samples") if isinstance(known, dict) else ""
    return found if isinstance(found, str) and found.startswith(SPLICED) else ""


def is_unchanged(cache: Cache, number: int, keys: Keys, facts: SampleFacts) -> bool:
    """Whether a sample of the last generation has just these entries and facts."""
    sample = cache.sample(number)
    same = all(getattr(sample, name) == getattr(facts, name) for name in _EXACT)
    same = same and np.float32(sample.weight) == np.float32(facts.weight)
    return same and list(sample.captions) == list(facts.captions) and cache.keys(number) == keys


def notes_of(changes: Changes, cache: Cache) -> list[Note]:
    """The notes of the last run that still hold, and those on the samples that were looked at."""
    kept = [n for n in changes.before.notes if _GONE not in n.text and n.source not in changes.names]
    pairs = zip(changes.numbers, changes.layout.samples, strict=True)
    bare = [s.name for i, s in pairs if not any(s.item.captions) and any(cache.captions(i))]
    return [*kept, *changes.layout.notes, *([gone_note("caption", bare)] if bare else [])]


def _is_simple(plan: Plan) -> bool:
    """Whether each image of the sources depends on the files of its own name only."""
    special = {METADATA, CHOICES}
    return (
        all(source.masks.mode == "none" for source in plan.survey.sources)
        and plan.survey.is_whole
        and not any(special.intersection(listing.names) for listing in plan.survey.listings)
    )


def _changed_names(
    listings: Iterable[Listing], memory: SourceMemory, digests: Mapping[str, bytes]
) -> dict[str, list[str]] | None:
    """Folder → the files whose stamps differ from the last run's; None if other files are there."""
    listed = {listing.directory: listing for listing in listings}
    if digests.keys() != listed.keys():
        return None
    changed = {}
    for directory, listing in listed.items():
        if digests[directory] == listing.digest:
            continue
        then, now = memory.listed_stamps(directory), dict(listing.rows())
        if then is None or then.keys() != now.keys():
            return None
        changed[directory] = [name for name, stamp in now.items() if then[name] != stamp]
    return changed


def _lay_out(plan: Plan, changed: Mapping[str, list[str]], memory: SourceMemory) -> Layout | None:
    """The samples of the images that the changed files belong to; None if there is anything particular about them."""
    folders: dict[str, dict[str, Facts]] = {}
    records: list[FileRecord] = []
    for listing in plan.survey.listings:
        stems = {_stem(name) for name in changed.get(listing.directory, ())}
        names = [name for name in listing.names if stems and _stem(name) in stems]
        if any(is_mask(name) for name in names) or sum(map(is_image, names)) != len(stems):
            return None
        rows = read_records(listing.directory, names)
        folders[listing.directory] = {name: facts for _, name, _, facts in rows}
        records += rows
    if any(facts.error for _, _, _, facts in records):
        return None
    memory.remember_files(records)
    layout = plan.survey.lay_out_part(folders)
    plan.counts.opened += len(records)
    plan.counts.hashed += len(records)
    layout.settled = all(stamp != UNSETTLED for _, _, stamp, _ in records)
    return None if layout.excluded else layout


def _stem(name: str) -> str:
    return folded_form(name.rpartition(".")[0])


def _numbers(cache: Cache, samples: Collection[Planned]) -> list[int] | None:
    """The numbers of these samples in the last generation; None if it has others of these names."""
    names = list(dict.fromkeys(sample.name for sample in samples))
    found = cache.find_sources(names)
    wanted = {name: [sample for sample in samples if sample.name == name] for name in names}
    if any(len(found[name]) != len(wanted[name]) for name in names):
        return None
    places = {name: iter(found[name]) for name in names}
    return [next(places[sample.name]) for sample in samples]
