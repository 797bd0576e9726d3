"""`streamcache info`: shows what a cache contains, and draws a contact sheet on request."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PIL import Image

from ..dataset_cache import (
    Overview,
    Usage,
    bucket_chart,
    contact_sheet,
    open_cache,
    overview,
    place_of,
    trimmed_text,
    usage,
)
from ..errors import CacheError
from ..quantity import byte_count, plural
from .output import show, table
from .parser import CACHE_OR_ADDRESS, Parser, UsageError

_CAPTION = 60


def add_info_flags(parser: Parser) -> None:
    parser.set_defaults(run=run)
    parser.add_argument("cache", metavar="CACHE", help=CACHE_OR_ADDRESS)
    parser.add_argument("--contact-sheet", metavar="FILE", help="Also draw the thumbnails to this image file")


def run(args: argparse.Namespace) -> int:
    if args.contact_sheet:
        _check_image_file(Path(args.contact_sheet))
    args.cache = place_of(args.cache)
    disk = usage(args.cache)
    facts = overview(args.cache)
    lines = [*describe(facts), *describe_usage(disk)]
    extra: dict[str, Any] = {"usage": asdict(disk)}
    if args.contact_sheet:
        try:
            contact_sheet(open_cache(args.cache)).save(args.contact_sheet)
        except OSError as error:
            raise CacheError(f"{args.contact_sheet}: cannot be written: {error.strerror or error}") from None
        lines.append(f"Contact sheet: {args.contact_sheet}")
        extra["contact_sheet"] = args.contact_sheet
    show(args, {**facts.to_json(), **extra}, lines)
    return 0


def _check_image_file(path: Path) -> None:
    """Before the thumbnails are read."""
    if Image.registered_extensions().get(path.suffix.lower()) not in Image.SAVE:
        raise UsageError(f"--contact-sheet {path}: not the name of an image file; use one such as sheet.png")
    if not path.parent.is_dir():
        raise CacheError(f"--contact-sheet {path}: the folder {path.parent} does not exist; create it first")


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
    yield from _provenance(facts.provenance)


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
        yield f"Leftover files: {byte_count(disk.debris)}; `streamcache clean` can remove them"
    yield f"Readers now: {', '.join(disk.readers) or 'none'}; writer: {disk.writer or 'none'}"


def _sets(facts: Overview) -> Iterator[str]:
    for name, known in facts.sets.items():
        words = ", ".join(
            key if value is True else f"{key} {_plain(value)}"
            for key, value in known.items()
            if value not in (None, False)
        )
        yield f"Set {name or '(unnamed)'}: {plural(facts.set_samples[name], 'sample')}{', ' + words if words else ''}"


def _sizes(facts: Overview) -> Iterator[str]:
    rows = [["field", "references", "entries", "size without sharing"]]
    rows += [[f.name, f"{f.variants:,}", f"{f.entries:,}", byte_count(f.bytes)] for f in facts.fields]
    yield from (f"  {line}" for line in table(rows))
    stored, index = byte_count(facts.shard_bytes), byte_count(facts.index_bytes)
    yield f"Stored: {stored} in {plural(facts.shards, 'shard')}, index {index}"
    shared, unshared = byte_count(facts.bytes_shared), byte_count(facts.bytes_unshared)
    yield f"Sharing: the samples take {shared}; if nothing were shared, {unshared} ({facts.shared:.2f}×)"
    if facts.bytes_trimmed:
        text = trimmed_text(facts.bytes_trimmed, facts.bytes_untrimmed)
        yield text[0].upper() + text[1:]
    if facts.unused:
        yield f"Unused: {plural(facts.unused, 'entry')}, not needed by any sample; `streamcache clean` can remove them"


def _provenance(provenance: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """How a cache was made, as text. What other programs recorded is shown as it is."""
    for name, value in provenance.items():
        describe_part = _MAKERS.get(name)
        known = describe_part is not None and isinstance(value, (Mapping, list))
        lines = describe_part(value) if describe_part and known else [f"{name}: {_plain(value)}"]
        yield from (f"{indent}{line}" for line in lines)


def _encoded(made: Mapping[str, Any]) -> Iterator[str]:
    known = made.get("encoder_names", {})
    for name, identity in made.get("encoders", {}).items():
        called = f"{known[name]} ({identity})" if known.get(name) else identity or "none"
        yield f"{name.capitalize()} encoder: {called}"
    for source in made.get("sources", []):
        sides = ", ".join(map(str, (source.get("transform") or {}).get("resolutions", [])))
        yield f"Source: {source.get('folder', 'a list')} → set {source.get('set')}, resolution {sides}"
    if chosen := made.get("chosen", {}).get("count"):
        yield f"Excluded by choice: {plural(chosen, 'image')}"
    excluded = made.get("excluded", {})
    if excluded.get("count"):
        yield f"Skipped: {plural(excluded['count'], 'file')}"
        yield from (f"  {e['source']}: {e['reason']}" for e in excluded["files"][:10])


def _merged(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The caches that were merged, by `streamcache merge` or by the node."""
    yield f"Merged from {plural(len(parts), 'cache')}"
    for part in parts:
        count = f", {plural(part['samples'], 'sample')}" if isinstance(part.get("samples"), int) else ""
        yield f"  {part.get('folder')}{count}, generation {str(part.get('generation'))[:12]}"
        if isinstance(own := part.get("provenance"), Mapping):
            yield from _provenance(own, "    ")


def _converted(made: Mapping[str, Any]) -> Iterator[str]:
    shards = f" ({plural(made['shards'], 'shard')})" if isinstance(made.get("shards"), int) else ""
    yield f"Converted from {made.get('folder')}{shards}, {made.get('format')}"


_MAKERS: dict[str, Callable[[Any], Iterable[str]]] = {
    "encode": _encoded,
    "merged": _merged,
    "gathered": _merged,
    "converted": _converted,
}


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return (
        {True: "yes", False: "no", None: "none"}.get(value, str(value))
        if not isinstance(value, float)
        else f"{value:g}"
    )


def _shorten(text: str) -> str:
    return repr(text if len(text) <= _CAPTION else text[: _CAPTION - 1] + "…")
