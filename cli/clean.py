"""`streamcache clean`: counts what a dataset's folder could do without, and removes exactly that when told to."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from ..dataset_cache import CATEGORIES, DEBRIS, SUPERSEDED, UNUSED, CleanPlan, Removal, clean, preview_clean
from .output import add_output_option, byte_count, plural, show

_NOUNS = {DEBRIS: "file", UNUSED: "entry", SUPERSEDED: "generation"}


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    text = "count what a dataset's folder could do without; with --apply, remove exactly that"
    parser = subparsers.add_parser("clean", help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("dataset", help="the folder of the dataset")
    for name, what in CATEGORIES.items():
        parser.add_argument(f"--{name}", dest="categories", action="append_const", const=name, help=what)
    parser.add_argument("--apply", action="store_true", help="remove it; the categories must be named")
    add_output_option(parser)
    parser.set_defaults(usage_error=parser.error)
    return parser


def run(args: argparse.Namespace) -> int:
    if args.apply and not args.categories:
        args.usage_error(f"--apply needs to know what: {', '.join('--' + name for name in CATEGORIES)}")
    plan = preview_clean(args.dataset, args.categories or CATEGORIES)
    if args.apply:
        plan = clean(plan)
    facts = {"removed": args.apply, "bytes": plan.bytes, "categories": [asdict(r) for r in plan.removals]}
    show(args, facts, _describe(args, plan))
    return 0


def _describe(args: argparse.Namespace, plan: CleanPlan) -> Iterator[str]:
    for removal in plan.removals:
        yield _line(removal)
    if args.apply:
        yield f"Removed {byte_count(plan.bytes)} from {args.dataset}"
    else:
        filled = [removal.category for removal in plan.removals if removal.files]
        flags = " ".join(f"--{category}" for category in filled)
        command = f'streamcache clean "{args.dataset}" {flags} --apply'
        yield f"To remove it: {command}" if filled else "Nothing to remove"


def _line(removal: Removal) -> str:
    text = f"{removal.category:10}  {plural(removal.count, _NOUNS[removal.category])}, {byte_count(removal.bytes)}"
    if removal.kept:
        text += f" ({removal.kept})"
    if removal.held_by and removal.files:
        text += f" (in use: {', '.join(removal.held_by)})"
    return text
