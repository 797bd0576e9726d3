"""`streamcache compact`: merges small shards and leaves behind what nothing refers to."""

import argparse
from dataclasses import asdict

from ..dataset_cache import compact
from .output import add_output_option, show
from .progress import Progress


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    text = "merge a dataset's small shards and leave behind what nothing refers to"
    parser = subparsers.add_parser("compact", help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("dataset", help="the folder of the dataset")
    add_output_option(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    with Progress(args, "Compacting") as progress:
        report = compact(args.dataset, progress)
    show(args, asdict(report), [str(report)])
    return 0
