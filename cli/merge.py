"""`streamcache merge`: several datasets become one, deduplicated, without encoding anything."""

import argparse
from dataclasses import asdict

from ..dataset_cache import merge
from .output import add_output_option, show
from .progress import Progress


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    text = "make one dataset of several; what they share is stored once, nothing is encoded"
    parser = subparsers.add_parser("merge", help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("datasets", nargs="+", help="the folders of the datasets; where they differ, the first wins")
    parser.add_argument("--to", required=True, metavar="CACHE", help="the folder of the new dataset")
    add_output_option(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    with Progress(args, "Merging", "samples") as progress:
        report = merge(args.datasets, args.to, progress)
    renamed = [f"Renamed, since an earlier dataset has another of the name: {', '.join(report.renamed)}"]
    show(args, asdict(report), [str(report), *(renamed if report.renamed else [])])
    return 0
