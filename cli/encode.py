"""`streamcache encode`: folders of pictures become a cache; only what is new is encoded."""

import argparse
import sys
from typing import Any

from ..dataset_cache import CacheError, Plan, Report, encode, make_plan
from ..dataset_cache import Progress as Told
from ..reference import ReferenceImageEncoder, ReferenceTextEncoder
from .encode_options import add_options, read_options
from .host import add_host_options, hand_over
from .output import Progress, add_output_option, byte_count, show

EXCLUDED = 3


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    text = "encode folders of pictures to a cache; only what is new or changed is encoded"
    more = "Without --comfyui the encoders are the small reference VAE and text encoder, which fit the reference model."
    parser = subparsers.add_parser("encode", help=text, description=f"{text}. {more}")
    add_options(parser)
    parser.add_argument("--to", required=True, metavar="CACHE", help="the folder of the cache")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    parser.add_argument("--strict", action="store_true", help="end with code 3 if files were excluded")
    models = add_host_options(parser)
    models.add_argument("--vae", metavar="NAME", help="a VAE of ComfyUI, by the name in its Load VAE")
    models.add_argument(
        "--clip",
        action="append",
        default=[],
        metavar="NAME",
        help="a text encoder, as in its Load CLIP; may be repeated",
    )
    models.add_argument("--clip-type", default="stable_diffusion", metavar="TYPE", help="default: %(default)s")
    add_output_option(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    _check_models(args)
    handed_over = hand_over(args)
    if handed_over is not None:
        return handed_over
    sources, settings = read_options(args)
    plan = make_plan(sources, settings=settings, **_encoders(args))
    report = plan.report(args.to) if args.dry_run else _encode(args, plan)
    show(args, report.to_json(), report.lines())
    return EXCLUDED if args.strict and report.excluded else 0


def _check_models(args: argparse.Namespace) -> None:
    named = bool(args.vae or args.clip)
    if named and not args.comfyui:
        raise CacheError("--vae and --clip name models of ComfyUI; say where it is with --comfyui FOLDER")
    if args.comfyui and not named:
        raise CacheError("--comfyui: name a VAE with --vae, a text encoder with --clip, or both")


def _encoders(args: argparse.Namespace) -> dict[str, Any]:
    if not args.comfyui:
        return {"image_encoder": ReferenceImageEncoder(), "text_encoder": ReferenceTextEncoder()}
    from ..nodes.host.encoders import named_encoders  # only in the host, where its modules can be imported

    return named_encoders(args.vae, args.clip, args.clip_type)


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
