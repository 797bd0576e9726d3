"""Encode: a plan becomes a cache. Captions first, then pictures; each encoder is loaded once, and only if it is needed.

Pictures are decoded by threads ahead of the encoder, and entries are stored by a thread behind it, so that the encoder
sets the pace.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import CacheError
from ..format import read_manifest
from ..sources import FolderSource, Note, State
from ..upkeep import repair
from ..write import CacheWriter
from .assemble import Assembly
from .behind import WriteBehind
from .encode_captions import encode_captions
from .pipeline import encode_pictures
from .plan import Plan
from .report import EncodeReport, Progress
from .survey import Layout
from .target import RUN, Target
from .work import Stopped, Work


def encode(
    plan: Plan,
    path: str | Path,
    *,
    progress: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
    provenance: Mapping[str, Any] | None = None,
) -> EncodeReport:
    """Encode what the cache at `path` lacks, and publish the plan's samples as its next generation.

    `progress` and `stop` are called between batches; `provenance` is noted in the dataset. A run that is stopped or
    ends with an error publishes nothing, but keeps what it encoded for the next one.
    """
    started = time.monotonic()
    if plan.settings.check and read_manifest(Path(path)) is not None:
        repair(path)
    _refuse_source(plan, path)
    target = Target(path, provenance)
    if plan.settings.trust:
        target.check_trust(plan.recipe)
    with target.open_state() as state:
        report = _unchanged(plan, target, state) or _encode(plan, target, state, progress, stop)
    report.path, report.counts = str(path), plan.counts
    report.seconds = time.monotonic() - started
    return report


def _refuse_source(plan: Plan, path: str | Path) -> None:
    for source in plan.sources:
        if isinstance(source, FolderSource) and os.path.realpath(path) == os.path.realpath(source.root):
            raise CacheError(f"{path}: is a source of this dataset; encode to a folder of its own")


def _unchanged(plan: Plan, target: Target, state: State) -> EncodeReport | None:
    """The last report again, if nothing that decides the dataset has changed since."""
    last = state.run(RUN)
    if plan.settings.trust or plan.settings.check or target.before is None or last is None:
        return None
    signature, generation, report = last
    if (signature, generation) != (plan.survey.signature(plan.recipe), target.before.generation):
        return None
    return EncodeReport.from_json({**report, "unchanged": True, "generation": generation})


def _encode(
    plan: Plan, target: Target, state: State, progress: Callable[[Progress], None], stop: Callable[[], bool]
) -> EncodeReport:
    report = EncodeReport()

    def check_stop() -> None:
        if stop():
            raise Stopped

    try:
        layout = plan.lay_out(state, hash_new=not target.is_empty, check=check_stop)
        if not layout.samples:
            raise CacheError(_nothing(layout))
        report.excluded, report.notes = list(layout.excluded), list(layout.notes)
        report.trusted = layout.trusted
        if state.problem:
            report.notes.append(Note("", state.problem))
        _write(plan, layout, target, state, report, progress, stop)
    except Stopped:
        report.stopped = True
        report.generation = target.before.generation if target.before is not None else ""
    return report


def _write(
    plan: Plan,
    layout: Layout,
    target: Target,
    state: State,
    report: EncodeReport,
    progress: Callable[[Progress], None],
    stop: Callable[[], bool],
) -> None:
    facts: dict[str, Any] = {}  # the writer keeps this very dict; it is filled in before publishing
    writer = CacheWriter(target.path, provenance={**target.provenance, RUN: facts})
    try:
        with WriteBehind(writer) as behind:
            work = Work(
                plan, layout, state, writer, behind, report, progress, stop, target.dropped, settled=layout.settled
            )
            try:
                encode_captions(work)
                encode_pictures(work)
            finally:
                work.commit()
                work.explain()
        report.bytes = behind.bytes
        _publish(work, target, facts)
    finally:
        writer.close()


def _publish(work: Work, target: Target, facts: dict[str, Any]) -> None:
    """Publish, unless readers would see no difference."""
    assembly, report = Assembly(work), work.report
    assembly.add_all()
    if not assembly.included:
        raise CacheError(_nothing(work.layout, report))
    facts.update(assembly.provenance())
    before = target.before
    if not report.made and _is_published(target, work.state, facts):
        report.unchanged, report.generation, dataset = True, before.generation, before.id
    else:
        target.let_go()
        manifest = work.writer.publish()
        report.generation, dataset = manifest.generation, manifest.id
        report.unchanged = before is not None and before.generation == manifest.generation
    work.state.remember_origins(assembly.origins(work.state.known_origins()))
    target.settle_state(work.state, dataset)
    if work.settled and not work.plan.settings.trust:
        signature = work.plan.survey.signature(work.plan.recipe)
        work.state.remember_run(RUN, signature, report.generation, report.as_reused())


def _is_published(target: Target, state: State, facts: dict[str, Any]) -> bool:
    """Whether the cache is as such a run left it: others may have saved other samples over its facts."""
    last, before = state.run(RUN), target.before
    left = before is not None and last is not None and last[1] == before.generation
    return left and before.provenance.get(RUN) == facts


def _nothing(layout: Layout, report: EncodeReport | None = None) -> str:
    excluded = report.excluded if report is not None else layout.excluded
    first = f"; the first of them: {excluded[0].source}: {excluded[0].reason}" if excluded else ""
    return f"no sample is left to encode: {len(excluded):,} files were excluded{first}. Nothing was changed"
