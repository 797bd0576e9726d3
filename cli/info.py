"""`streamcache info`: shows what a cache contains, and draws a contact sheet on request."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ..dataset_cache import (
    CacheError,
    Overview,
    Usage,
    bucket_chart,
    contact_sheet,
    open_cache,
    overview,
    plural,
    usage,
)
from .output import add_output_option, byte_count, show, table

_CAPTION = 60


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    text = "show a cache's buckets, captions, sizes, sharing, and how it was made"
    parser = subparsers.add_parser("info", help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("cache", metavar="CACHE", help="folder of the cache")
    parser.add_argument("--contact-sheet", metavar="FILE", help="also save the thumbnails, by bucket, as this image")
    add_output_option(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    disk = usage(args.cache)
    facts = overview(args.cache)
    lines = [*describe(facts), *describe_usage(disk)]
    extra: dict[str, Any] = {"usage": asdict(disk)}
    if args.contact_sheet:
        try:
            contact_sheet(open_cache(args.cache)).save(args.contact_sheet)
        except (OSError, ValueError) as error:  # ValueError: unknown image file extension
            path = args.contact_sheet
            raise CacheError(f"{path}: cannot be written ({error}); use a file name such as sheet.png") from None
        lines.append(f"Contact sheet: {args.contact_sheet}")
        extra["contact_sheet"] = args.contact_sheet
    show(args, {**facts.to_json(), **extra}, lines)
    return 0


def describe(facts: Overview) -> Iterator[str]:
    """The overview as text."""
    epoch = f" ({facts.epoch:,} per epoch, with repeats)" if facts.epoch != facts.samples else ""
    yield f"{facts.path}: {plural(facts.samples, 'sample')}{epoch}, generation {facts.generation[:12]}"
    yield f"Buckets ({len(facts.buckets)})"
    yield from (f"  {line}" for line in bucket_chart(facts.buckets))
    yield from _sets(facts)
    distinct, empty = facts.captions_distinct, facts.captions_empty
    yield f"Captions: {facts.captions:,}, {distinct:,} of them distinct, {empty:,} empty"
    yield from (f"  {count:>7,} × {_shorten(text)}" for text, count in facts.captions_common if count > 1)
    yield from _sizes(facts)
    yield from _provenance(facts)


def describe_usage(disk: Usage) -> Iterator[str]:
    """Disk space by purpose, and the processes that use the cache."""
    if disk.missing:
        names = ", ".join(disk.missing[:3]) + (", …" if len(disk.missing) > 3 else "")
        yield f"DAMAGED: {plural(len(disk.missing), 'shard')} missing or truncated ({names}); run `streamcache verify`"
    parts = [*disk.fields.items(), ("unused", disk.unused), ("index", disk.index)]
    yield "Disk space: " + ", ".join(f"{name} {byte_count(size)}" for name, size in parts if size)
    older = f"; {plural(disk.older_generations, 'older generation')} ({byte_count(disk.older)})"
    yield f"Published: {disk.published}{older if disk.older_generations else ''}"
    if disk.building:
        yield f"Unfinished build: {byte_count(disk.building)}; the next save continues it"
    if disk.debris:
        yield f"Debris: {byte_count(disk.debris)}; `streamcache clean` can remove it"
    yield f"Readers now: {', '.join(disk.readers) or 'none'}; writer: {disk.writer or 'none'}"


def _sets(facts: Overview) -> Iterator[str]:
    for name, known in facts.sets.items():
        words = ", ".join(f"{key} {value}" for key, value in known.items() if value not in (None, False))
        yield f"Set {name or '(unnamed)'}: {plural(facts.set_samples[name], 'sample')}{', ' + words if words else ''}"


def _sizes(facts: Overview) -> Iterator[str]:
    rows = [["field", "references", "entries", "size without sharing"]]
    rows += [[f.name, f"{f.variants:,}", f"{f.entries:,}", byte_count(f.bytes)] for f in facts.fields]
    yield from (f"  {line}" for line in table(rows))
    stored, index = byte_count(facts.shard_bytes), byte_count(facts.index_bytes)
    yield f"Stored: {stored} in {plural(facts.shards, 'shard')}, index {index}"
    unshared = byte_count(facts.bytes_unshared)
    yield f"Sharing: without it the samples would take {unshared}, {facts.shared:.2f} × the size of all entries"
    if facts.unused:
        yield f"Unused: {plural(facts.unused, 'entry')}, needed by no sample; `streamcache clean` can remove them"


def _provenance(facts: Overview) -> Iterator[str]:
    made = facts.provenance.get("encode")
    if not isinstance(made, dict):
        yield from (f"{name}: {value}" for name, value in facts.provenance.items())
        return
    known = made.get("encoder_names", {})
    for name, identity in made.get("encoders", {}).items():
        called = f"{known[name]} ({identity})" if known.get(name) else identity or "none"
        yield f"{name.capitalize()} encoder: {called}"
    for source in made.get("sources", []):
        sides = ", ".join(map(str, (source.get("transform") or {}).get("resolutions", [])))
        yield f"Source: {source.get('folder', 'a list')} → set {source.get('set')}, resolution {sides}"
    excluded = made.get("excluded", {})
    if excluded.get("count"):
        yield f"Excluded: {plural(excluded['count'], 'file')}"
        yield from (f"  {e['source']}: {e['reason']}" for e in excluded["files"][:10])


def _shorten(text: str) -> str:
    return repr(text if len(text) <= _CAPTION else text[: _CAPTION - 1] + "…")
