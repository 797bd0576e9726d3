"""Saves what a node gets as a dataset (a plan, a dataset, lists of latents) as a cache with a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ...dataset_cache import (
    CacheError,
    CacheWriter,
    EncodeProgress,
    EncodeReport,
    Manifest,
    Part,
    encode,
    gather,
    peek_bucket_counts,
    plural,
    read_manifest,
    split_rows,
)
from ...lora_train import format_seconds
from .handles import DatasetHandle, DatasetPlan, published_generation

_PHASES = {"captions": "Encoding captions", "images": "Encoding images"}
_MAX_BUCKETS = 500  # in the facts of a saved cache
_LISTED = 8  # buckets and excluded files that are shown on a node


class Watcher(Protocol):
    """Shows progress, and may stop the work by raising."""

    def __call__(self, done: int, total: int | None, text: str = "") -> None: ...

    def check(self) -> None: ...


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


def save(given: Given, name: str, path: Path, watch: Watcher, purpose: Mapping[str, str] = {}) -> Saved:
    """Save the inputs to `path`, with the purpose in the provenance. Entries that are already stored are reused."""
    if given.dataset is not None and (given.latents or given.conditionings):
        raise CacheError("both a dataset and lists are connected; connect only one of them")
    if isinstance(given.dataset, DatasetPlan):
        return _save_plan(given.dataset, name, path, watch, purpose)
    if isinstance(given.dataset, DatasetHandle):
        parts = [Part(given.dataset.open())]
        return describe(name, path, gather_parts(parts, path, watch), ())
    if not given.latents and not given.conditionings:
        raise CacheError("nothing to save: connect a dataset, or latents and conditioning")
    return describe(name, path, _save_lists(given, path, watch, purpose), ())


def gather_parts(parts: Sequence[Part], path: Path, watch: Watcher) -> str:
    def progress(done: int, total: int) -> None:
        watch(done, total, f"Saving {done:,} of {total:,} samples")

    return gather(parts, path, progress)


def _save_plan(plan: DatasetPlan, name: str, path: Path, watch: Watcher, purpose: Mapping[str, str]) -> Saved:
    def progress(now: EncodeProgress) -> None:
        left = f", {format_seconds(now.seconds_left)} left" if now.seconds_left is not None else ""
        what = _PHASES.get(now.phase, now.phase)
        watch(now.done, now.total, f"{what}: {now.done:,} of {now.total:,}, {now.rate:.1f}/s{left}")

    def stop() -> bool:
        watch.check()
        return False

    watch(0, None, "Scanning the images")
    report = encode(plan.plan(), path, progress=progress, stop=stop, provenance=purpose)
    return describe(name, path, report.generation, _report_lines(report), report)


def _save_lists(given: Given, path: Path, watch: Watcher, purpose: Mapping[str, str]) -> str:
    latents, conditionings, captions = given.latents, given.conditionings, given.captions
    if len(latents) != len(conditionings):
        raise CacheError(
            f"found {len(latents):,} latents and {len(conditionings):,} conditionings, expected one per latent"
        )
    if len(captions) not in (0, 1, len(latents)):
        raise CacheError(
            f"found {len(captions):,} captions for {len(latents):,} latents, expected one each, one for all, or none"
        )
    with CacheWriter(path, provenance={**purpose, "made by": "lists of latents and conditionings"}) as writer:
        for number, (latent, conditioning) in enumerate(zip(latents, conditionings, strict=True)):
            watch(number, len(latents), f"Saving {number:,} of {len(latents):,} latents")
            caption = captions[number if len(captions) > 1 else 0] if captions else ()
            rows = split_rows(
                latent, conditioning, f"item {number}", "connect the outputs of VAE Encode and CLIP Text Encode"
            )
            for row, condition, suffix in rows:
                writer.add(row, condition, caption, source=f"item-{number:05d}{suffix}")
    return published_generation(path, path.name)


def describe(name: str, path: Path, generation: str, lines: Sequence[str], report: EncodeReport | None = None) -> Saved:
    """The handle of the saved cache, with its size and buckets."""
    manifest = read_manifest(path)
    if manifest is None or manifest.generation != generation:
        raise CacheError(f"cache {name} was changed by another process while it was being saved; save it again")
    facts = summarize(name, path, manifest)
    buckets, size = facts["buckets"], facts["bytes"]
    first = f"{facts['samples']:,} samples in {len(buckets):,} buckets, {size / 1e6:,.1f} MB: {name}"
    shown = [f"{bucket}: {count:,}" for bucket, count in list(buckets.items())[:_LISTED]]
    if report is not None:
        plain = [{"source": e.source, "reason": e.reason} for e in report.excluded]
        facts |= {"encoded": report.encoded, "reused": report.reused, "excluded": plain, "unchanged": report.unchanged}
        facts["warnings"] = _warnings(report)
    return Saved(DatasetHandle(name, path, generation), (first, *lines, *shown), facts)


def summarize(name: str, path: Path, manifest: Manifest) -> dict[str, Any]:
    """What a page shows of a cache in one line and a chart. Buckets in pixels if known."""
    return {
        "name": name,
        "samples": manifest.counts["samples"],
        "bytes": sum(shard.bytes for shard in manifest.shards) + manifest.index_bytes,
        "buckets": dict(list(peek_bucket_counts(path, manifest).items())[:_MAX_BUCKETS]),
        "generation": manifest.generation,
    }


def _report_lines(report: EncodeReport) -> list[str]:
    if report.unchanged:
        lines = ["Unchanged: nothing to encode"]
    else:
        names = sorted({*report.encoded, *report.reused} - {"thumbnail"})
        lines = [f"{n}: {report.encoded.get(n, 0):,} encoded, {report.reused.get(n, 0):,} reused" for n in names]
    return lines + _warnings(report)


def _warnings(report: EncodeReport) -> list[str]:
    """What to know before training."""
    lines = [f"No caption: {report.uncaptioned:,} of {report.samples:,} samples"] if report.uncaptioned else []
    if report.unmasked:
        lines.append(f"No mask: {report.unmasked:,} of {report.samples:,} samples (the whole image is used)")
    if report.excluded:
        lines.append(f"Skipped: {plural(len(report.excluded), 'file')}")
        lines += [f"{e.source}: {e.reason}" for e in report.excluded[:_LISTED]]
    return lines
