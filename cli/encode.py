"""`streamcache encode`: folders of pictures become a cache; only what is new is encoded."""

import argparse
import sys

from ..dataset_cache.encode import encode
from ..dataset_cache.plan import Plan, make_plan
from ..dataset_cache.report import Progress as Told
from ..dataset_cache.report import Report
from ..lora_train.reference.encoders import ReferenceImageEncoder, ReferenceTextEncoder
from .encode_options import add_options, read_options
from .output import add_output_option, byte_count, show
from .progress import Progress

EXCLUDED = 3


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    text = "encode folders of pictures to a cache; only what is new or changed is encoded"
    more = "The encoders are the small reference VAE and text encoder, which fit the reference model."
    parser = subparsers.add_parser("encode", help=text, description=f"{text}. {more}")
    add_options(parser)
    parser.add_argument("--to", required=True, metavar="CACHE", help="the folder of the cache")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    parser.add_argument("--strict", action="store_true", help="end with code 3 if files were excluded")
    add_output_option(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    sources, settings = read_options(args)
    plan = make_plan(
        sources, image_encoder=ReferenceImageEncoder(), text_encoder=ReferenceTextEncoder(), settings=settings
    )
    report = plan.report(args.to) if args.dry_run else _encode(args, plan)
    show(args, report.to_json(), report.lines())
    return EXCLUDED if args.strict and report.excluded else 0


def _encode(args: argparse.Namespace, plan: Plan) -> Report:
    with Progress(args, "Encoding", "items") as bar:

        def tell(told: Told) -> None:
            bar(
                told.done,
                told.total,
                f"{told.phase}, {told.rate:,.1f}/s, {told.hits:,} reused, {byte_count(told.bytes)}",
            )

        try:
            return encode(plan, args.to, progress=tell)
        except KeyboardInterrupt:
            print(f"What was encoded is kept in {args.to}; the same command goes on with it.", file=sys.stderr)
            raise
