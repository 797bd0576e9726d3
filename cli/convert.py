"""`streamcache convert`: a training dataset that ComfyUI's own nodes wrote becomes a cache."""

import argparse
from dataclasses import asdict

from ..dataset_cache import convert
from .output import add_output_option, show
from .progress import Progress


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    text = "import a dataset that ComfyUI's Save Training Dataset wrote (pickle shards, or the skeletons of #14599)"
    parser = subparsers.add_parser("convert", help=text, description=text)
    parser.add_argument("source", help="the folder with shard_0000.pkl, or with shard_0000.safetensors and skeletons")
    parser.add_argument("--to", required=True, metavar="CACHE", help="the folder of the new cache")
    add_output_option(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    with Progress(args, "Converting", "items") as progress:
        report = convert(args.source, args.to, progress=progress)
    show(args, asdict(report), [str(report)])
    return 0
