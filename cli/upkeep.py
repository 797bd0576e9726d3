"""`streamcache verify`: names what is damaged, missing or left over; `--repair` goes on without what is damaged."""

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

from ..dataset_cache import DEBRIS, Problem, RepairReport, repair, verify
from .output import add_output_option, show
from .progress import Progress

PROBLEMS_FOUND = 3
_MOST_LINES = 20


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    text = "read a whole dataset and name what is damaged, missing or left over"
    parser = subparsers.add_parser("verify", help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("dataset", help="the folder of the dataset")
    parser.add_argument("--repair", action="store_true", help="publish a generation without what is damaged")
    parser.add_argument("--all", action="store_true", help=f"print all problems, not only {_MOST_LINES} of a kind")
    add_output_option(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    with Progress(args, "Verifying") as progress:
        problems = list(verify(args.dataset, progress))
    faults = [problem for problem in problems if problem.kind != DEBRIS]
    report = None
    if args.repair and faults:
        with Progress(args, "Repairing") as progress:
            report = repair(args.dataset, progress)
    facts = {"problems": [asdict(problem) for problem in problems], "repaired": asdict(report) if report else None}
    show(args, facts, _describe(args, problems, report))
    return PROBLEMS_FOUND if problems and report is None else 0


def _describe(args: argparse.Namespace, problems: list[Problem], report: RepairReport | None) -> Iterator[str]:
    counts: Counter[str] = Counter()
    for problem in problems:
        counts[problem.kind] += 1
        if args.all or counts[problem.kind] <= _MOST_LINES:
            yield str(problem)
    for kind, count in counts.items():
        if count > _MOST_LINES and not args.all:
            yield f"{kind}: and {count - _MOST_LINES:,} more (--all shows them)"
    if not problems:
        yield f"{args.dataset}: no problems"
    elif report is not None:
        yield str(report)
    else:
        yield f"{args.dataset}: " + ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        if set(counts) - {DEBRIS}:
            yield f'To go on without what is damaged: streamcache verify --repair "{args.dataset}"'
        else:
            yield f'To remove it: streamcache clean "{args.dataset}" --debris --apply'
