"""A run that looks at a few changed samples: they are encoded and take the places of their former rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from ..format import read_manifest
from ..index import SampleFacts, count_used, open_index
from ..read import Cache
from ..sources import SourceMemory
from ..upkeep import size_label
from ..write import CacheWriter
from .changes import SPLICED, Changes, is_unchanged, notes_of, remember_listings
from .pipeline import Run, Stopped, WriteBehind, encode_captions, encode_images
from .plan import Plan
from .recipe import Keys, Planned
from .report import EncodeProgress, EncodeReport
from .target import CUT, RUN, Target


@dataclass(frozen=True)
class _Row:
    """A sample, with its number in the last generation, as it is now."""

    number: int
    sample: Planned
    keys: Keys
    facts: SampleFacts


def encode_changes(
    plan: Plan,
    target: Target,
    memory: SourceMemory,
    changes: Changes,
    begin: Callable[[EncodeReport], None],
    progress: Callable[[EncodeProgress], None],
    stop: Callable[[], bool],
) -> EncodeReport | None:
    """Encode the changes and publish; None if there is a problem with one: everything must be looked at."""
    assert target.storage is not None and target.cache is not None, "there are changes to a cache"
    report = EncodeReport(notes=notes_of(changes, target.cache))
    begin(report)
    writer = CacheWriter(target.storage, provenance=target.provenance)
    try:
        if not writer.adopt_sets():
            return None
        with WriteBehind(writer) as output:
            run = Run(plan, changes.layout, memory, writer, output, report, progress, stop, target.dropped)
            run.kept = changes.kept
            try:
                encode_captions(run)
                encode_images(run)
            finally:
                run.finish()
        report.bytes = output.bytes
        rows = [_row(plan, sample, number) for number, sample in zip(changes.numbers, changes.layout.samples)]
        if run.failures or not all(writer.has(key) for row in rows for keys in row.keys.values() for key in keys):
            return None
        _publish(run, target, changes, rows)
    except Stopped:
        report.stopped, report.generation = True, target.before.generation if target.before else ""
    finally:
        writer.close()
    return report


def _row(plan: Plan, sample: Planned, number: int) -> _Row:
    item, placement = sample.item, sample.placement()
    facts = SampleFacts(
        list(item.captions), sample.name, sample.size, placement.crop, item.repeats, item.source.weight, item.source.set
    )
    return _Row(number, sample, plan.recipe.keys(sample, placement), facts)


def _publish(run: Run, target: Target, changes: Changes, rows: list[_Row]) -> None:
    cache, writer, report = target.cache, run.writer, run.report
    assert cache is not None and target.storage is not None, "there are changes to a cache"
    new = sorted((r for r in rows if not is_unchanged(cache, r.number, r.keys, r.facts)), key=lambda row: row.number)
    _count(report, changes.before, cache, new)
    place = 0
    for row in new:
        writer.keep(place, row.number - place)
        writer.sample(row.keys, row.facts)
        place = row.number + 1
    writer.keep(place, len(cache) - place)
    for name, key in cache.named.items():
        writer.name(name, key)
    provenance, before = dict(cache.provenance[RUN]), cache.generation
    if new:
        provenance["samples"] = _digest(provenance.get("samples"), new)
    del cache
    target.let_go()
    manifest = writer.publish({**target.provenance, RUN: provenance})
    report.generation, report.unchanged = manifest.generation, manifest.generation == before
    _count_entries(run, target)
    _remember(run, manifest.generation)


def _count(report: EncodeReport, before: EncodeReport, cache: Cache, new: list[_Row]) -> None:
    """The numbers of the last run, with those of the new samples in the place of the former ones."""
    report.samples, report.epoch, report.unmasked = before.samples, before.epoch, before.unmasked
    report.uncaptioned, buckets = before.uncaptioned, dict(before.buckets)
    for row in new:
        former = cache.sample(row.number)
        report.uncaptioned += (not any(row.facts.captions)) - (not any(former.captions))
        for label, change in ((size_label(*former.crop[2:]), -1), (size_label(*row.sample.target), 1)):
            buckets[label] = buckets.get(label, 0) + change
    ordered = sorted(buckets.items(), key=lambda item: (-item[1], item[0]))
    report.buckets = {label: count for label, count in ordered if count > 0}


def _count_entries(run: Run, target: Target) -> None:
    """How many entries of each field are in use, and which captions are cut."""
    assert target.storage is not None, "a run without a path"
    manifest = read_manifest(target.storage)
    assert manifest is not None, "it was just published"
    index, encoded = open_index(target.storage, manifest), run.report.encoded
    named = [index.find_entry(bytes.fromhex(key)) for key in manifest.named.values()]
    used, counts = count_used(index, len(manifest.fields), [entry for entry in named if entry is not None])
    fields = {name: int(count) for name, count in zip(manifest.fields, counts, strict=True) if count}
    run.report.reused = {name: max(0, count - encoded.get(name, 0)) for name, count in fields.items()}
    last = run.memory.run(CUT)
    known = {**(last[2] if last is not None else {}), **run.report.cut}
    entries = {key: index.find_entry(bytes.fromhex(key)) for key in known}
    run.report.cut = {key: name for key, name in known.items() if (entry := entries[key]) is not None and used[entry]}


def _digest(before: object, new: list[_Row]) -> str:
    """Stands for all samples: what stood for the former ones, and those in their places."""
    digest = blake2b(str(before).encode(), digest_size=16)
    for row in new:
        plain = {name: [key.hex() for key in found] for name, found in row.keys.items()}
        digest.update(json.dumps([row.number, plain, vars(row.facts)], sort_keys=True).encode())
    return SPLICED + digest.hexdigest()


def _remember(run: Run, generation: str) -> None:
    plan, memory, recipe = run.plan, run.memory, run.plan.recipe
    memory.remember_origins(
        (sample.origin, name, origin)
        for sample in run.layout.samples
        for name, origin in recipe.origins(sample).items()
    )
    memory.remember_run(CUT, "", generation, run.report.cut)
    if run.settled:
        memory.remember_run(RUN, plan.survey.signature(recipe), generation, run.report.as_reused())
        remember_listings(plan, memory, generation)
