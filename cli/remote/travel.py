"""`streamcache push`, `pull` and `sync`: bring a cache to another place and back."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from ...dataset_cache import CacheError, place_of, roots, travel
from ...quantity import byte_count, plural
from ..output import Progress, show
from ..parser import Parser, UsageError

_ADDRESS = "s3://bucket/my_set or another address, a folder such as a NAS, or root/my_set of a registered root"
_GRACE_HOURS = 24.0


def add_push_flags(parser: Parser) -> None:
    parser.set_defaults(run=run_push)
    parser.add_argument("dataset", metavar="CACHE", help="Folder of the cache")
    parser.add_argument("address", metavar="ADDRESS", help=f"Where to: {_ADDRESS}")
    _add_travel_flags(parser, pushes=True)


def add_pull_flags(parser: Parser) -> None:
    parser.set_defaults(run=run_pull)
    parser.add_argument("address", metavar="ADDRESS", help=f"Where from: {_ADDRESS}")
    parser.add_argument(
        "dataset", metavar="CACHE", help="Folder of the cache; a new one, or one that was pulled before"
    )
    _add_travel_flags(parser, pushes=False)


def add_sync_flags(parser: Parser) -> None:
    parser.set_defaults(run=run_sync)
    parser.add_argument("dataset", metavar="CACHE", help="Folder of the cache")
    parser.add_argument("address", metavar="ADDRESS", help=f"The other side: {_ADDRESS}")
    text = "If both sides changed: the side whose samples stay; the other side gets them"
    parser.add_argument("--keep", choices=travel.KEEP, help=text)
    _add_travel_flags(parser, pushes=True)


def run_push(args: argparse.Namespace) -> int:
    with Progress(args, "Pushing") as progress:
        return _show(args, travel.push(args.dataset, other_side(args.address), _travel(args, progress)))


def run_pull(args: argparse.Namespace) -> int:
    with Progress(args, "Pulling") as progress:
        return _show(args, travel.pull(other_side(args.address), args.dataset, _travel(args, progress)))


def run_sync(args: argparse.Namespace) -> int:
    with Progress(args, "Syncing") as progress:
        return _show(args, travel.sync(args.dataset, other_side(args.address), args.keep, _travel(args, progress)))


def other_side(text: str) -> str:
    """The place that a user typed. A mistyped root must not become a new folder here."""
    place, parts = place_of(text), Path(text).parts
    if place == text and ":" not in text and len(parts) > 1 and not Path(parts[0]).exists():
        listed = ", ".join(sorted(roots())) or "none"
        raise CacheError(
            f"{text}: {parts[0]!r} is neither a registered root nor a folder that exists (registered: {listed}); "
            "register it in remotes.toml, or make the folder first"
        )
    return place


def _add_travel_flags(parser: Parser, pushes: bool) -> None:
    parser.add_argument("--dry-run", action="store_true", help="Say what would be sent, and change nothing")
    text = "Read what the other side has already and send again what is damaged; otherwise its size is compared"
    parser.add_argument("--verify", action="store_true", help=text)
    if pushes:
        text = "Remove files at ADDRESS that neither its current nor its last generation needs"
        parser.add_argument("--prune", action="store_true", help=text)
        text = f"With --prune: keep what was superseded less than this long ago [{_GRACE_HOURS:g}]"
        parser.add_argument("--grace", type=float, metavar="HOURS", help=text)


def _travel(args: argparse.Namespace, progress: Progress) -> travel.Travel:
    prunes, grace = getattr(args, "prune", False), getattr(args, "grace", None)
    if grace is not None and not (prunes and grace >= 0):
        raise UsageError("--grace: is the time in hours that --prune waits; give it a number from 0 with --prune")
    seconds = 3600 * (_GRACE_HOURS if grace is None else grace)
    return travel.Travel(args.dry_run, args.verify, prunes, seconds, progress)


def _show(args: argparse.Namespace, report: travel.TravelReport) -> int:
    show(args, asdict(report), _lines(args, report))
    return 0


def _lines(args: argparse.Namespace, report: travel.TravelReport) -> Iterator[str]:
    yield str(report)
    if getattr(args, "prune", False):
        found, verb = report.pruned, "Would remove" if report.dry_run else "Removed"
        waiting = f"; {plural(found.waiting, 'file')} still in the time of grace" if found.waiting else ""
        yield f"{verb} {plural(found.files, 'older file')} ({byte_count(found.bytes)}){waiting}"
