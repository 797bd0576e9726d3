"""`streamcache export`: a compact copy of a dataset, by hard links where possible."""

import argparse
from dataclasses import asdict

from ..dataset_cache import duplicate, export
from .output import add_output_option, show
from .progress import Progress


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    text = "copy a dataset's current samples to a new folder, by hard links where possible"
    parser = subparsers.add_parser("export", help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("dataset", help="the folder of the dataset")
    parser.add_argument("--to", required=True, metavar="CACHE", help="the folder of the copy")
    parser.add_argument("--duplicate", action="store_true", help="make it a dataset of its own, with a new id")
    add_output_option(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    with Progress(args, "Copying") as progress:
        report = (duplicate if args.duplicate else export)(args.dataset, args.to, progress)
    show(args, asdict(report), [str(report)])
    return 0
