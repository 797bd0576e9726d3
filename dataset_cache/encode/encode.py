"""Encoding: a plan becomes a cache. This file owns the run from plan to publication; pipeline.py does the encoding."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import blake2b
from typing import Any

from ...errors import CacheError
from ...quantity import plural
from ..format import Manifest, Place, read_manifest, storage_at
from ..index import SampleFacts
from ..read import Cache
from ..sources import THUMBNAIL, Excluded, Note, Origin, SourceMemory, is_remembered, open_memory
from ..write import CacheWriter, refuse_foreign_folder
from .changes import find_changes, is_unchanged, remember_listings, spliced_digest
from .missing import count_missing, find_unreadable, refuse_unreadable
from .pipeline import Run, Stopped, WriteBehind, encode_captions, encode_images
from .plan import Plan, compare, named_captions
from .recipe import Keys, Planned
from .report import EncodeProgress, EncodeReport
from .splice import encode_changes
from .survey import Layout
from .target import CUT, RUN, Target

_LISTED = 1000  # excluded files in the manifest


def encode(
    plan: Plan,
    path: Place,
    *,
    progress: Callable[[EncodeProgress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
    provenance: Mapping[str, Any] | None = None,
    begin: Callable[[EncodeReport], None] = lambda report: None,
) -> EncodeReport:
    """Encode the entries that the cache at `path` lacks, and publish the plan's samples as its next generation.

    `begin` is called before anything is encoded, with the notes so far; `progress` and `stop` between batches;
    `provenance` is recorded in the manifest. A run that is stopped or fails publishes nothing, but keeps its entries
    for the next run.
    """
    started, storage = time.monotonic(), storage_at(path)
    if any(source.is_at(str(storage.path)) for source in plan.sources):
        raise CacheError(f"{storage.path}: is a source of this dataset; encode to another folder")
    refuse_foreign_folder(storage)
    target = Target(storage, provenance)
    if plan.settings.trust:
        target.check_trust(plan.recipe)
    with target.open_memory() as memory:
        report = (
            _unchanged(plan, target, memory)
            or _encode_changes(plan, target, memory, begin, progress, stop)
            or _encode(plan, target, memory, begin, progress, stop)
        )
    report.path, report.counts = str(storage.path), plan.counts
    report.seconds = time.monotonic() - started
    return report


def is_encoded(plan: Plan, path: Place) -> bool:
    """Whether encoding the plan to the cache at `path` would change nothing."""
    published = read_manifest(path)
    if published is None or not is_remembered(published.id):
        return False
    with open_memory(published.id) as memory:
        # Most caches are of other plans: only the one that matches is opened.
        return _last_report(plan, published, memory) is not None and _unchanged(plan, Target(path), memory) is not None


def _unchanged(plan: Plan, target: Target, memory: SourceMemory) -> EncodeReport | None:
    """The last report again, if nothing that decides the dataset has changed since, and no shard is lost."""
    report = _last_report(plan, target.before, memory)
    return None if report is None or target.lost else report


def _last_report(plan: Plan, published: Manifest | None, memory: SourceMemory) -> EncodeReport | None:
    """The report of the run that published this generation, if it encoded the same plan."""
    last = memory.run(RUN)
    if plan.settings.trust or plan.settings.check or published is None or last is None:
        return None
    signature, generation, report = last
    if generation != published.generation or signature != plan.survey.signature(plan.recipe):
        return None
    return EncodeReport.from_json({**report, "unchanged": True, "generation": generation})


def _encode_changes(
    plan: Plan,
    target: Target,
    memory: SourceMemory,
    begin: Callable[[EncodeReport], None],
    progress: Callable[[EncodeProgress], None],
    stop: Callable[[], bool],
) -> EncodeReport | None:
    """A run that looks only at what changed since the last one, if that is little and simple."""
    changes = find_changes(plan, target, memory)
    return None if changes is None else encode_changes(plan, target, memory, changes, begin, progress, stop)


def _encode(
    plan: Plan,
    target: Target,
    memory: SourceMemory,
    begin: Callable[[EncodeReport], None],
    progress: Callable[[EncodeProgress], None],
    stop: Callable[[], bool],
) -> EncodeReport:
    report = EncodeReport()

    def check_stop() -> None:
        if stop():
            raise Stopped

    try:
        layout = plan.lay_out(memory, hash_new=not target.is_empty, check=check_stop)
        report.excluded, report.notes = list(layout.excluded), list(layout.notes)
        report.trusted = layout.trusted
        if not layout.samples:
            raise CacheError(_no_samples(report))
        compare(plan, layout, target, memory, report)
        if plan.settings.check:  # after the comparison, which needs the samples that a repair drops
            target = target.repaired()
        if memory.problem:
            report.notes.append(Note("", memory.problem))
        begin(report)
        _write(plan, layout, target, memory, report, progress, stop)
    except Stopped:
        report.stopped = True
        report.generation = target.before.generation if target.before is not None else ""
    return report


def _write(
    plan: Plan,
    layout: Layout,
    target: Target,
    memory: SourceMemory,
    report: EncodeReport,
    progress: Callable[[EncodeProgress], None],
    stop: Callable[[], bool],
) -> None:
    assert target.storage is not None, "a run without a path"
    writer = CacheWriter(target.storage, provenance=target.provenance, trim=plan.settings.trim_padding)
    try:
        with WriteBehind(writer) as output:
            run = Run(plan, layout, memory, writer, output, report, progress, stop, target.dropped)
            try:
                encode_captions(run)
                encode_images(run)
            finally:
                run.finish()
        report.bytes, report.text_bytes = output.bytes, output.text_bytes
        report.trimmed_bytes = writer.trimmed_bytes
        _publish(run, target)
    finally:
        writer.close()


def _publish(run: Run, target: Target) -> None:
    """Publish, unless readers would see no difference."""
    spliced, report = spliced_digest(target.before), run.report
    assembly = Assembly(run, target.cache if spliced else None)
    assembly.add_all()
    if not assembly.included:
        raise CacheError(_no_samples(report))
    _compare_again(run, target)
    facts, before = assembly.provenance(), target.before
    if assembly.is_same:  # what stands for the samples is the same, too
        facts["samples"] = spliced
    if before is not None and not report.made and not target.lost and _is_published(before, run.memory, facts):
        report.unchanged, report.generation, dataset = True, before.generation, before.id
    else:
        target.let_go()
        manifest = run.writer.publish({**target.provenance, RUN: facts})
        report.generation, dataset = manifest.generation, manifest.id
        report.unchanged = before is not None and before.generation == manifest.generation
    run.memory.remember_origins(assembly.origins(run.memory.known_origins()))
    target.settle_memory(run.memory, dataset)
    run.memory.remember_run(CUT, "", report.generation, report.cut)
    if run.settled and not run.plan.settings.trust:
        signature = run.plan.survey.signature(run.plan.recipe)
        run.memory.remember_run(RUN, signature, report.generation, report.as_reused())
        remember_listings(run.plan, run.memory, report.generation)


def _compare_again(run: Run, target: Target) -> None:
    """Images of the last generation that became unreadable during the run are refused as before it."""
    unreadable = find_unreadable(target.names, run.report.excluded) if run.unreadable else []
    if not run.plan.settings.allow_missing:
        refuse_unreadable(unreadable)
    run.report.missing = count_missing(run.report.missing, unreadable)


def _is_published(before: Manifest, memory: SourceMemory, facts: dict[str, Any]) -> bool:
    """Whether the cache is as the last run left it: another writer may have saved other samples with its facts."""
    last = memory.run(RUN)
    return last is not None and last[1] == before.generation and before.provenance.get(RUN) == facts


def _no_samples(report: EncodeReport) -> str:
    skipped, chosen = report.skipped, len(report.chosen)
    first = f"; the first of them: {skipped[0].source}: {skipped[0].reason}" if skipped else ""
    left_out = f", {plural(chosen, 'image')} excluded by choice" if chosen else ""
    return f"no samples to encode: {plural(len(skipped), 'file')} skipped{first}{left_out}. Nothing was changed"


class Assembly:
    """The samples of the next generation, made of entries that are all stored. Adds them to the run's writer."""

    def __init__(self, run: Run, before: Cache | None = None) -> None:
        """`before` is a generation that the samples are compared with, one by one."""
        self.run, self._before = run, before
        self._same = before is not None
        self.included: list[Planned] = []
        self._digest = blake2b(digest_size=16)
        self._used: dict[str, set[bytes]] = {}  # field → distinct keys: an entry that samples share counts once

    def add_all(self) -> None:
        plan, writer, report = self.run.plan, self.run.writer, self.run.report
        excluded: dict[Excluded, None] = {}  # an image has a sample per resolution, but is named once
        for sample in self.run.layout.samples:
            problem = self._add(sample)
            if problem:
                excluded[Excluded(sample.name, problem, sample.origin in self.run.unreadable)] = None
        report.excluded += excluded
        for name, facts in plan.sets.items():
            writer.describe_set(name, facts)
        for name, caption in named_captions(plan):
            key = plan.recipe.conditioning_key(caption)
            if writer.has(key):
                writer.name(name, key)
                self._used.setdefault("conditioning", set()).add(key)
        self._update([plan.sets, list(named_captions(plan))])
        report.count(self.included)
        encoded = report.encoded
        report.reused = {name: max(0, len(keys) - encoded.get(name, 0)) for name, keys in self._used.items()}
        used, last = self._used.get("conditioning", set()), self.run.memory.run(CUT)
        known = {**(last[2] if last is not None else {}), **report.cut}
        report.cut = {key: name for key, name in known.items() if bytes.fromhex(key) in used}

    @property
    def is_same(self) -> bool:
        """Whether the samples are those of the generation that they were compared with."""
        return self._before is not None and self._same and len(self.included) == len(self._before)

    def provenance(self) -> dict[str, Any]:
        """How the dataset was made, for the manifest. `samples` is a digest of all samples."""
        plan, skipped, chosen = self.run.plan, self.run.report.skipped, self.run.report.chosen
        listed = [{"source": e.source, "reason": e.reason} for e in skipped[:_LISTED]]
        facts = {
            "encoders": plan.recipe.describe(),
            "encoder_names": plan.encoder_names(),
            "settings": {"thumbnail": plan.settings.thumbnail, "background": list(plan.settings.background)},
            "sources": [source.describe() for source in plan.survey.sources],
            "excluded": {"count": len(skipped), "files": listed},
            "samples": self._digest.hexdigest(),
        }
        if chosen:
            facts["chosen"] = {"count": len(chosen), "files": [e.source for e in chosen[:_LISTED]]}
        if self.run.report.missing:
            facts["missing"] = self.run.report.missing
        return json.loads(json.dumps(facts))  # as the manifest returns it, so that the two compare equal

    def origins(self, known: Collection[str]) -> Iterator[tuple[str, str, Origin]]:
        """What entries are made of, for samples that are new to the memory or got new entries in this run."""
        for sample in self.included:
            if sample.origin in self.run.encoded or sample.origin not in known:
                for name, origin in self.run.plan.recipe.origins(sample).items():
                    yield sample.origin, name, origin

    def _add(self, sample: Planned) -> str:
        """Add one sample, or return why not."""
        failures, writer, item = self.run.failures, self.run.writer, sample.item
        if sample.origin in failures:
            return failures[sample.origin]
        placement = sample.placement()
        keys = self.run.plan.recipe.keys(sample, placement)
        captions, problem = list(item.captions), ""
        if "conditioning" in keys:
            lost = [key for key in keys["conditioning"] if not writer.has(key)]
            good = [(key, text) for key, text in zip(keys["conditioning"], captions) if key not in lost]
            problem = "" if good else f"its caption: {failures.get(lost[0], 'was not encoded')}"
            keys["conditioning"], captions = [key for key, _ in good], [text for _, text in good]
        lost = [key for name, found in keys.items() if name != THUMBNAIL for key in found if not writer.has(key)]
        if problem or lost:
            return problem or failures.get(lost[0], "its file changed during the run; encode again")
        self._store(sample, keys, captions, placement.crop)
        return ""

    def _store(self, sample: Planned, keys: Keys, captions: list[str], crop: tuple[int, int, int, int]) -> None:
        item, source = sample.item, sample.item.source
        facts = SampleFacts(captions, sample.name, sample.size, crop, item.repeats, source.weight, source.set)
        number = self.run.writer.sample(keys, facts)
        if self._before is not None and self._same:
            self._same = number < len(self._before) and is_unchanged(self._before, number, keys, facts)
        self.included.append(sample)
        for name, found in keys.items():
            self._used.setdefault(name, set()).update(found)
        plain = {name: [key.hex() for key in found] for name, found in keys.items()}
        self._update([plain, captions, sample.name, sample.size, crop, item.repeats, source.weight, source.set])

    def _update(self, value: Any) -> None:
        self._digest.update(json.dumps(value, sort_keys=True).encode())
