"""Saves what a node gets as a dataset (a plan, a dataset, lists of latents) as a cache with a name."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ...dataset_cache import (
    FROM_LISTS,
    Address,
    CacheError,
    CacheWriter,
    EncodeProgress,
    EncodeReport,
    Manifest,
    Part,
    Plan,
    byte_count,
    cut_captions,
    encode,
    few_names,
    gather,
    is_encoded,
    peek_bucket_counts,
    plural,
    read_manifest,
    refuse_other_origin,
    split_rows,
    storage_at,
    trimmed_text,
)
from ...lora_train import format_seconds
from .handles import DatasetHandle, DatasetPlan, handle_of, published_generation
from .paths import list_caches

_PHASES = {"captions": "Encoding captions", "images": "Encoding images"}
_MAX_BUCKETS = 500  # in the facts of a saved cache
_LISTED = 8  # buckets and excluded files that are shown on a node


class Watcher(Protocol):
    """Shows progress, and may stop the work by raising."""

    def __call__(self, done: int, total: int | None, text: str = "") -> None: ...

    def check(self) -> None: ...

    def show(self, text: str) -> None: ...

    def remark(self, text: str) -> None:
        """Show this below every further text."""
        ...


@dataclass(frozen=True)
class Given:
    """The inputs to save: a dataset, or lists from other nodes."""

    dataset: DatasetHandle | DatasetPlan | None = None
    latents: Sequence[dict] = ()
    conditionings: Sequence[list] = ()
    captions: Sequence[str] = ()


@dataclass(frozen=True)
class Saved:
    """A saved dataset with its summary, as lines for the node and as facts for the page."""

    handle: DatasetHandle
    lines: tuple[str, ...]
    facts: dict[str, Any]


def encoded_before(plan: Plan, path: Path, roots: Sequence[Path]) -> DatasetHandle | None:
    """A cache that has the samples of the plan: the one at this place, or another."""
    caches = list_caches(roots)
    for known in sorted(caches, key=lambda known: caches[known] != path):
        with contextlib.suppress(CacheError):  # damaged, or being saved: not the one
            if is_encoded(plan, caches[known]):
                return handle_of(known, caches[known])
    return None


def save(given: Given, name: str, path: Path, watch: Watcher, purpose: Mapping[str, str] = {}) -> Saved:
    """Save the inputs to `path`, with the purpose in the provenance. Entries that are already stored are reused."""
    check_given(given, "save")
    if given.dataset is not None and given.dataset.encoded is False:
        return _save_plan(given.dataset, name, path, watch, purpose)
    if given.dataset is not None:
        return save_parts([Part(given.dataset.open())], name, path, watch)
    return _describe(name, path, _save_lists(given, path, watch, purpose), ())


def check_given(given: Given, use: str) -> None:
    """Refuse inputs that do not fit together, or none at all; `use` says what they are for."""
    latents, conditionings, captions = len(given.latents), len(given.conditionings), len(given.captions)
    if given.dataset is not None and (latents or conditionings):
        raise CacheError("both a dataset and lists are connected; connect only one of them")
    if given.dataset is None and not latents and not conditionings:
        raise CacheError(nothing_given(use))
    if latents != conditionings:
        raise CacheError(f"found {latents:,} latents and {conditionings:,} conditionings, expected one per latent")
    if given.dataset is None and captions not in (0, 1, latents):
        raise CacheError(
            f"found {captions:,} captions for {latents:,} latents, expected one each, one for all, or none"
        )


def nothing_given(use: str) -> str:
    source = "a dataset (from Encode Dataset or Streamable Cache Load)"
    return f"nothing to {use}: connect {source}, or latents and conditioning"


def save_parts(parts: Sequence[Part], name: str, path: Path, watch: Watcher, merged: bool = False) -> Saved:
    """Copy the samples of open datasets, as a merge or as a copy."""

    def progress(done: int, total: int) -> None:
        watch(done, total, f"Saving {done:,} of {total:,} samples")

    warnings: list[str] = []
    generation = gather(parts, path, progress, merged, warnings.append)
    return _describe(name, path, generation, [f"Warning: {text}" for text in warnings])


def _save_plan(plan: DatasetPlan, name: str, path: Path, watch: Watcher, purpose: Mapping[str, str]) -> Saved:
    def progress(now: EncodeProgress) -> None:
        left = f", {format_seconds(now.seconds_left)} left" if now.seconds_left is not None else ""
        what = _PHASES.get(now.phase, now.phase)
        watch(now.done, now.total, f"{what}: {now.done:,} of {now.total:,}, {now.rate:.1f}/s{left}")

    def stop() -> bool:
        watch.check()
        return False

    def begin(report: EncodeReport) -> None:
        watch.remark("\n".join(_notices(report)))

    watch(0, None, "Scanning the images")
    try:
        report = encode(plan.plan(), path, progress=progress, stop=stop, provenance=purpose, begin=begin)
    except BaseException as error:
        # Otherwise the node keeps showing the progress at which the run ended.
        how = "Failed" if isinstance(error, Exception) else "Stopped"
        watch.show(f"{how}. Encoded entries are kept; queue again to continue")
        raise
    watch.remark("")  # the summary has it
    return _describe(name, path, report.generation, _report_lines(report), report)


def _save_lists(given: Given, path: Path, watch: Watcher, purpose: Mapping[str, str]) -> str:
    if not purpose:  # the lists may be a selection from the very cache that they would replace
        refuse_other_origin(storage_at(path), FROM_LISTS)
    latents, conditionings, captions = given.latents, given.conditionings, given.captions
    with CacheWriter(path, provenance={**purpose, **FROM_LISTS}) as writer:
        for number, (latent, conditioning) in enumerate(zip(latents, conditionings, strict=True)):
            watch(number, len(latents), f"Saving {number:,} of {len(latents):,} latents")
            caption = captions[number if len(captions) > 1 else 0] if captions else ()
            rows = split_rows(
                latent, conditioning, f"item {number}", "connect the outputs of VAE Encode and CLIP Text Encode"
            )
            for row, condition, suffix in rows:
                writer.add(row, condition, caption, source=f"item-{number:05d}{suffix}")
    return published_generation(path, path.name)


def _describe(
    name: str, path: Path, generation: str, lines: Sequence[str], report: EncodeReport | None = None
) -> Saved:
    """The handle of the saved cache, with its size and buckets."""
    manifest = read_manifest(path)
    if manifest is None or manifest.generation != generation:
        raise CacheError(f"cache {name} was changed by another process while it was being saved; save it again")
    facts = summarize(name, path, manifest)
    buckets, size = facts["buckets"], facts["bytes"]
    first = f"{plural(facts['samples'], 'sample')} in {plural(len(buckets), 'bucket')}, {byte_count(size)}: {name}"
    shown = [f"{bucket}: {count:,}" for bucket, count in list(buckets.items())[:_LISTED]]
    if report is not None:
        plain = [{"source": e.source, "reason": e.reason} for e in report.skipped]
        facts |= {"encoded": report.encoded, "reused": report.reused, "excluded": plain, "unchanged": report.unchanged}
        facts |= {"removed": report.removed, "missing": report.missing, "warnings": _warnings(report)}
        facts |= {"chosen": [e.source for e in report.chosen], "notices": _notices(report)}
    return Saved(DatasetHandle(name, path, generation), (first, *lines, *shown), facts)


def summarize(name: str, path: Path | Address, manifest: Manifest) -> dict[str, Any]:
    """What a page shows of a cache in one line and a chart. Buckets in pixels if known."""
    return {
        "name": name,
        "samples": manifest.counts["samples"],
        "bytes": sum(shard.bytes for shard in manifest.shards) + manifest.whole_index_bytes,
        "buckets": dict(list(peek_bucket_counts(path, manifest).items())[:_MAX_BUCKETS]),
        "generation": manifest.generation,
    }


def _report_lines(report: EncodeReport) -> list[str]:
    if report.unchanged:
        lines = ["Unchanged: nothing to encode"]
    else:
        names = sorted({*report.encoded, *report.reused} - {"thumbnail"})
        lines = [f"{n}: {report.encoded.get(n, 0):,} encoded, {report.reused.get(n, 0):,} reused" for n in names]
    if report.trimmed_bytes:
        lines.append(trimmed_text(report.trimmed_bytes, report.text_bytes))
    return lines + _warnings(report)


def _warnings(report: EncodeReport) -> list[str]:
    """What to know before training."""
    lines = [f"No caption: {report.uncaptioned:,} of {report.samples:,} samples"] if report.uncaptioned else []
    if report.unmasked:
        lines.append(f"No mask: {report.unmasked:,} of {report.samples:,} samples (the whole image is used)")
    if report.removed:
        lines.append(f"No longer in the dataset: {plural(len(report.removed), 'sample')}: {few_names(report.removed)}")
    if report.missing:
        lines.append(f"Missing folders (their entries are kept): {few_names(list(report.missing))}")
    if report.chosen:
        lines.append(f"Excluded by choice: {plural(len(report.chosen), 'image')}")
    if report.skipped:
        lines.append(f"Skipped: {plural(len(report.skipped), 'file')}")
        lines += [f"{e.source}: {e.reason}" for e in report.skipped[:_LISTED]]
    return lines + _notices(report)


def _notices(report: EncodeReport) -> list[str]:
    """What is probably not as it was meant. Notes are known before anything is encoded."""
    cut = [cut_captions(report.cut)] if report.cut else []
    return cut + [f"{note.source}: {note.text}" if note.source else note.text for note in report.notes[:_LISTED]]
