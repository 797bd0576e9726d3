"""The commands on existing caches: verify, clean, compact, merge, export and convert."""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict

from ..dataset_cache import (
    CATEGORIES,
    DEBRIS,
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
    merge,
    plural,
    preview_clean,
    repair,
    verify,
)
from .output import Progress, add_output_option, byte_count, show

PROBLEMS_FOUND = 3
_MOST_LINES = 20
_NOUNS = {DEBRIS: "file", UNUSED: "entry", SUPERSEDED: "generation"}


def add_parsers(subparsers: argparse._SubParsersAction) -> None:
    verifying = _add_parser(subparsers, "verify", run_verify, "read a whole cache and list what is damaged or missing")
    _add_cache(verifying)
    verifying.add_argument("--repair", action="store_true", help="publish a generation without the damaged entries")
    verifying.add_argument("--all", action="store_true", help=f"list all problems, not only {_MOST_LINES} of each kind")

    text = "list what can be removed from a cache's folder; with --apply, remove it"
    cleaning = _add_parser(subparsers, "clean", run_clean, text)
    _add_cache(cleaning)
    for name, what in CATEGORIES.items():
        cleaning.add_argument(f"--{name}", dest="categories", action="append_const", const=name, help=what)
    cleaning.add_argument("--apply", action="store_true", help="remove the categories given")
    cleaning.set_defaults(usage_error=cleaning.error)

    text = "merge a cache's small shards and drop tensors that nothing refers to"
    _add_cache(_add_parser(subparsers, "compact", run_compact, text))

    text = "merge several caches into a new one; shared entries are stored once, nothing is encoded"
    merging = _add_parser(subparsers, "merge", run_merge, text)
    text = "folders of the caches; if they conflict, the first one wins"
    merging.add_argument("datasets", nargs="+", metavar="CACHE", help=text)
    merging.add_argument("--to", required=True, metavar="CACHE", help="folder of the new cache")

    text = "copy a cache's current samples to a new folder, with hard links if possible"
    exporting = _add_parser(subparsers, "export", run_export, text)
    _add_cache(exporting)
    exporting.add_argument("--to", required=True, metavar="CACHE", help="folder of the copy")
    exporting.add_argument("--duplicate", action="store_true", help="give the copy a new id, as an independent cache")

    text = "import a dataset written by ComfyUI's Save Training Dataset (pickle shards, or the skeletons of #14599)"
    converting = _add_parser(subparsers, "convert", run_convert, text)
    text = "folder with shard_0000.pkl, or with shard_0000.safetensors and skeletons"
    converting.add_argument("source", metavar="FOLDER", help=text)
    converting.add_argument("--to", required=True, metavar="CACHE", help="folder of the new cache")


def run_verify(args: argparse.Namespace) -> int:
    with Progress(args, "Verifying") as progress:
        problems = list(verify(args.dataset, progress))
    faults = [problem for problem in problems if problem.kind != DEBRIS]
    report = None
    if args.repair and faults:
        with Progress(args, "Repairing") as progress:
            report = repair(args.dataset, progress)
    facts = {"problems": [asdict(problem) for problem in problems], "repaired": asdict(report) if report else None}
    show(args, facts, _describe_problems(args, problems, report))
    return PROBLEMS_FOUND if problems and report is None else 0


def run_clean(args: argparse.Namespace) -> int:
    if args.apply and not args.categories:
        flags = ", ".join("--" + name for name in CATEGORIES)
        args.usage_error(f"--apply: expected at least one category to remove: {flags}")
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
        report = merge(args.datasets, args.to, progress)
    renamed = [f"Renamed, because an earlier cache uses the name: {', '.join(report.renamed)}"]
    show(args, asdict(report), [str(report), *(renamed if report.renamed else [])])
    return 0


def run_export(args: argparse.Namespace) -> int:
    with Progress(args, "Copying") as progress:
        report = (duplicate if args.duplicate else export)(args.dataset, args.to, progress)
    show(args, asdict(report), [str(report)])
    return 0


def run_convert(args: argparse.Namespace) -> int:
    with Progress(args, "Converting", "items") as progress:
        report = convert(args.source, args.to, progress=progress)
    show(args, asdict(report), [str(report)])
    return 0


def _add_parser(
    subparsers: argparse._SubParsersAction, name: str, run: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.set_defaults(run=run)
    add_output_option(parser)
    return parser


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="CACHE", help="folder of the cache")


def _describe_problems(args: argparse.Namespace, problems: list[Problem], report: RepairReport | None) -> Iterator[str]:
    counts: Counter[str] = Counter()
    for problem in problems:
        counts[problem.kind] += 1
        if args.all or counts[problem.kind] <= _MOST_LINES:
            yield str(problem)
    for kind, count in counts.items():
        if count > _MOST_LINES and not args.all:
            yield f"{kind}: and {count - _MOST_LINES:,} more (--all lists them)"
    if not problems:
        yield f"{args.dataset}: no problems found"
    elif report is not None:
        yield str(report)
    else:
        yield f"{args.dataset}: " + ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        if set(counts) - {DEBRIS}:
            yield f'To drop the damaged entries: streamcache verify --repair "{args.dataset}"'
        else:
            yield f'To remove them: streamcache clean "{args.dataset}" --debris --apply'


def _describe_removals(args: argparse.Namespace, plan: CleanPlan) -> Iterator[str]:
    for removal in plan.removals:
        yield _removal_line(removal)
    if args.apply:
        yield f"Removed {byte_count(plan.bytes)} from {args.dataset}"
    else:
        filled = [removal.category for removal in plan.removals if removal.files]
        flags = " ".join(f"--{category}" for category in filled)
        command = f'streamcache clean "{args.dataset}" {flags} --apply'
        yield f"To remove this: {command}" if filled else "Nothing to remove"


def _removal_line(removal: Removal) -> str:
    text = f"{removal.category:10}  {plural(removal.count, _NOUNS[removal.category])}, {byte_count(removal.bytes)}"
    if removal.kept:
        text += f" ({removal.kept})"
    if removal.held_by and removal.files:
        text += f" (in use: {', '.join(removal.held_by)})"
    return text
