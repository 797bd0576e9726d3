"""The commands on existing caches: verify, clean, compact, merge, export, import and convert."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ..dataset_cache import (
    CATEGORIES,
    DEBRIS,
    EXPORT_FORMATS,
    IMPORT_KINDS,
    MISSING,
    SUPERSEDED,
    UNUSED,
    CleanPlan,
    Problem,
    Removal,
    RepairReport,
    clean,
    compact,
    convert,
    duplicate,
    export,
    export_as,
    import_cache,
    merge,
    place_of,
    preview_clean,
    repair,
    shown_kind,
    verify,
)
from ..errors import CacheUnreadable, LossRefused
from ..quantity import byte_count
from .output import Progress, show
from .parser import CACHE_OR_ADDRESS, Parser, UsageError

REFUSED, PROBLEMS_FOUND = 1, 3
_MOST_LINES = 20
_FLAGS = {DEBRIS: "--leftover", SUPERSEDED: "--older", UNUSED: "--unused", MISSING: "--missing"}


def add_verify_flags(parser: Parser) -> None:
    parser.set_defaults(run=run_verify)
    _add_cache(parser, CACHE_OR_ADDRESS)
    parser.add_argument("--repair", action="store_true", help="Publish a generation without the damaged entries")
    text = "With --repair: drop the damaged samples also if they are more than 5%% of all"
    parser.add_argument("--yes", action="store_true", help=text)
    parser.add_argument("--all", action="store_true", help=f"List all problems, not only {_MOST_LINES} of each kind")


def add_clean_flags(parser: Parser) -> None:
    parser.set_defaults(run=run_clean)
    _add_cache(parser)
    for name, category in CATEGORIES.items():
        select: dict[str, Any] = {"dest": "categories", "action": "append_const", "const": name}
        parser.add_argument(_FLAGS[name], **select, help=category.text)
        if _FLAGS[name] != f"--{name}":
            parser.add_argument(f"--{name}", **select, help=argparse.SUPPRESS)  # the former name
    parser.add_argument("--apply", action="store_true", help="Remove what the flags select")


def add_compact_flags(parser: Parser) -> None:
    parser.set_defaults(run=run_compact)
    _add_cache(parser)


def add_merge_flags(parser: Parser) -> None:
    parser.set_defaults(run=run_merge)
    text = "Folders or addresses of the caches; if they conflict, the first one wins"
    parser.add_argument("datasets", nargs="+", metavar="CACHE", help=text)
    parser.add_argument("--to", required=True, metavar="CACHE", help="Folder of the new cache")
    text = "If CACHE exists: refuse [default], or update it if an earlier merge made it"
    parser.add_argument("--if-exists", choices=("refuse", "update"), default="refuse", help=text)


def add_export_flags(parser: Parser) -> None:
    parser.set_defaults(run=run_export)
    _add_cache(parser, CACHE_OR_ADDRESS)
    parser.add_argument("--to", required=True, metavar="FOLDER", help="Folder of the copy")
    parser.add_argument("--duplicate", action="store_true", help="Give the copy a new id, as an independent cache")
    text = "A cache [default], tar shards for webdataset, parquet files, or a folder for the Hugging Face Hub"
    parser.add_argument("--format", choices=("cache", *EXPORT_FORMATS), default="cache", help=text)


def add_import_flags(parser: Parser) -> None:
    parser.set_defaults(run=run_import)
    text = "Folder that export wrote, or of another trainer's cache"
    parser.add_argument("source", metavar="FOLDER", help=text)
    parser.add_argument("--to", required=True, metavar="CACHE", help="Folder of the new cache")
    text = "Folder of the images and captions, if it is not that of the trainer's cache"
    parser.add_argument("--images", metavar="FOLDER", help=text)
    text = "The trainer, if the folder has caches of several"
    parser.add_argument("--kind", choices=tuple(IMPORT_KINDS), default="", help=text)


def add_convert_flags(parser: Parser) -> None:
    parser.set_defaults(run=run_convert)
    text = "Folder with shard_0000.pkl, or with shard_0000.safetensors and skeletons"
    parser.add_argument("source", metavar="FOLDER", help=text)
    parser.add_argument("--to", required=True, metavar="CACHE", help="Folder of the new cache")


def run_verify(args: argparse.Namespace) -> int:
    args.dataset = place_of(args.dataset)
    with Progress(args, "Verifying") as progress:
        problems = list(verify(args.dataset, progress))
    faults = [problem for problem in problems if problem.kind != DEBRIS]
    report = refused = None
    if args.repair and faults:
        try:
            with Progress(args, "Repairing") as progress:
                report = repair(args.dataset, progress, accept_loss=args.yes)
        except (LossRefused, CacheUnreadable) as error:  # the problems are shown too: they name every sample
            refused = error
    facts = {"problems": [asdict(problem) for problem in problems], "repaired": asdict(report) if report else None}
    if refused is not None:
        facts["error"] = str(refused)
    show(args, facts, _describe_problems(args, problems, report))
    if refused is not None:
        print(f"streamcache: {refused}", file=sys.stderr)
        return REFUSED
    return PROBLEMS_FOUND if problems and report is None else 0


def run_clean(args: argparse.Namespace) -> int:
    if args.apply and not args.categories:
        raise UsageError(f"--apply: choose what to remove: {', '.join(_FLAGS.values())}")
    plan = preview_clean(args.dataset, args.categories or CATEGORIES)
    if args.apply:
        plan = clean(plan)
    facts = {"removed": args.apply, "bytes": plan.bytes, "categories": [asdict(r) for r in plan.removals]}
    show(args, facts, _describe_removals(args, plan))
    return 0


def run_compact(args: argparse.Namespace) -> int:
    with Progress(args, "Compacting") as progress:
        report = compact(args.dataset, progress)
    show(args, asdict(report), [str(report)])
    return 0


def run_merge(args: argparse.Namespace) -> int:
    with Progress(args, "Merging", "samples") as progress:
        report = merge([place_of(each) for each in args.datasets], args.to, progress, args.if_exists)
    renamed = [f"Renamed, because an earlier cache uses the name: {', '.join(report.renamed)}"]
    warnings = [f"Warning: {text}" for text in report.warnings]
    show(args, asdict(report), [str(report), *(renamed if report.renamed else []), *warnings])
    return 0


def run_export(args: argparse.Namespace) -> int:
    args.dataset = place_of(args.dataset)
    if args.format != "cache":
        return _export_as(args)
    with Progress(args, "Copying") as progress:
        report = (duplicate if args.duplicate else export)(args.dataset, args.to, progress)
    show(args, asdict(report), [str(report)])
    return 0


def run_import(args: argparse.Namespace) -> int:
    with Progress(args, "Importing", "samples") as progress:
        report = import_cache(args.source, args.to, args.images or None, args.kind, progress)
    show(args, asdict(report), str(report).splitlines())
    return 0


def run_convert(args: argparse.Namespace) -> int:
    with Progress(args, "Converting", "items") as progress:
        report = convert(args.source, args.to, progress=progress)
    show(args, asdict(report), [str(report)])
    return 0


def _export_as(args: argparse.Namespace) -> int:
    if args.duplicate:
        raise UsageError(f"--duplicate: only a copy as a cache has an id; leave out --format {args.format}")
    with Progress(args, "Exporting", "samples") as progress:
        report = export_as(args.dataset, args.to, args.format, progress)
    show(args, asdict(report), [str(report)])
    return 0


def _add_cache(parser: Parser, text: str = "Folder of the cache") -> None:
    parser.add_argument("dataset", metavar="CACHE", help=text)


def _describe_problems(args: argparse.Namespace, problems: list[Problem], report: RepairReport | None) -> Iterator[str]:
    counts: Counter[str] = Counter()
    for problem in problems:
        counts[problem.kind] += 1
        if args.all or counts[problem.kind] <= _MOST_LINES:
            yield str(problem)
    for kind, count in counts.items():
        if count > _MOST_LINES and not args.all:
            yield f"{shown_kind(kind)}: and {count - _MOST_LINES:,} more (--all lists them)"
    if not problems:
        yield f"{args.dataset}: no problems found"
    elif report is not None:
        yield str(report)
    else:
        yield f"{args.dataset}: " + ", ".join(f"{count:,} {shown_kind(kind)}" for kind, count in counts.items())
        if set(counts) - {DEBRIS, "unreadable"}:
            yield f'To drop the damaged entries: streamcache verify --repair "{args.dataset}"'
        elif DEBRIS in counts:
            yield f'To remove them: streamcache clean "{args.dataset}" {_FLAGS[DEBRIS]} --apply'


def _describe_removals(args: argparse.Namespace, plan: CleanPlan) -> Iterator[str]:
    for removal in plan.removals:
        yield _removal_line(removal)
    if args.apply:
        yield f"Removed {byte_count(plan.bytes)} from {args.dataset}"
    else:
        # Not suggested unless asked for: what is missing may come back.
        wanted = args.categories or [category for category in CATEGORIES if category != MISSING]
        filled = [removal.category for removal in plan.removals if removal.files and removal.category in wanted]
        flags = " ".join(_FLAGS[category] for category in filled)
        command = f'streamcache clean "{args.dataset}" {flags} --apply'
        yield f"To remove this: {command}" if filled else "Nothing to remove"


def _removal_line(removal: Removal) -> str:
    text = f"{CATEGORIES[removal.category].count(removal.count)}, {byte_count(removal.bytes)}"
    if removal.kept:
        text += f" ({removal.kept})"
    if removal.held_by and removal.files:
        text += f" (in use: {', '.join(removal.held_by)})"
    return text
