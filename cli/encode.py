"""`streamcache encode`: encode folders of images to a cache. Flags and TOML names come from the table of settings.

A TOML file has the settings of the plan at the top, and one [[source]] per folder with the settings of the source; a
[source.transform] table replaces the plan's image settings for that folder.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..dataset_cache import (
    COLOUR,
    COLOURS,
    NUMBERS,
    PLAN_SETTINGS,
    SOURCE_SETTINGS,
    CacheError,
    EncodeProgress,
    FolderSource,
    Plan,
    Report,
    Setting,
    Settings,
    encode,
    load_settings,
    load_source,
    load_transform,
    make_plan,
)
from ..lora_train import read_toml
from ..reference import ReferenceImageEncoder, ReferenceTextEncoder
from .host import add_host_options, hand_over, require_models
from .output import Progress, add_output_option, byte_count, show

EXCLUDED = 3
_SEEDS = ("crop_seed", "caption_seed")
_CLASS = "class"  # the set of --class-source


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    text = "encode folders of images to a cache; only new or changed images and captions are encoded"
    parser = subparsers.add_parser("encode", help=text, description=text)
    parser.add_argument("sources", nargs="*", metavar="SRC", help="folders of images")
    parser.add_argument("--to", required=True, metavar="CACHE", help="folder of the cache")
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings and further sources")
    parser.add_argument("--dry-run", action="store_true", help="show what would be encoded, and stop")
    parser.add_argument("--strict", action="store_true", help="exit with code 3 if files were excluded")
    _add_setting_flags(parser)
    models = add_host_options(parser)
    models.add_argument("--vae", metavar="NAME", help="ComfyUI's VAE, by its name in Load VAE")
    text = "text encoder of ComfyUI, by its name in Load CLIP; repeat it for several"
    models.add_argument("--clip", action="append", default=[], metavar="NAME", help=text)
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


def read_options(args: argparse.Namespace) -> tuple[list[FolderSource], Settings]:
    """The sources and settings from flags and file. Flags win over the file."""
    values = read_toml(args.config) if args.config else {}
    listed = values.pop("source", [])
    if not isinstance(listed, list):
        raise CacheError(f"{args.config}: source = {listed!r}: expected tables [[source]]")
    given = {name: value for name, value in vars(args).items() if value is not None}
    if args.seed is not None:
        given = {**dict.fromkeys(_SEEDS, args.seed), **given}
    settings = load_settings(_merge(values, _only(PLAN_SETTINGS, given)), args.config or "settings")
    sources = [load_source(path, _only(SOURCE_SETTINGS, given), path) for path in args.sources]
    base = Path(args.config).parent if args.config else Path()
    sources += [_read_source(entry, base, f"[[source]] {n}") for n, entry in enumerate(listed, 1)]
    if args.class_source:
        prior = {"set": _CLASS, "prior": True, "prompt": args.class_prompt, "weight": args.class_weight}
        sources.append(load_source(args.class_source, prior, "--class-source"))
    return sources, settings


def _read_source(entry: Any, base: Path, place: str) -> FolderSource:
    values = dict(_as_table(entry, place))
    path = values.pop("path", None)
    if not isinstance(path, str):
        raise CacheError(f"{place}: path is missing: the folder of its images, relative to this file")
    own = values.pop("transform", None)
    transform = None if own is None else load_transform(_as_table(own, f"{place} transform"), f"{place} transform")
    return load_source(str(base / path), values, place, transform)


def _merge(values: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """Values of a file without those that flags replace, under any of their names."""
    replaced = {name for flag in flags for name in (flag, *PLAN_SETTINGS[flag].old_names)}
    kept = {name: value for name, value in values.items() if name not in replaced}
    if isinstance(table := kept.get("transform"), Mapping):
        fields = replaced | {"seed"} if "crop_seed" in flags else replaced
        kept["transform"] = {name: value for name, value in table.items() if name not in fields}
    return {**kept, **flags}


def _only(settings: Mapping[str, Setting], given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in settings}


def _as_table(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CacheError(f"{place}: found {value!r}, expected a table")
    return value


def _add_setting_flags(parser: argparse.ArgumentParser) -> None:
    groups: dict[str, Any] = {}
    for setting in {**PLAN_SETTINGS, **SOURCE_SETTINGS}.values():
        name = setting.limits.group
        if name not in groups:
            groups[name] = parser.add_argument_group(f"{name} settings")
        _add_flag(groups[name], setting)
    groups["set"].add_argument(
        "--not-recursive", dest="recursive", action="store_false", default=None, help=argparse.SUPPRESS
    )
    groups["set"].add_argument("--class-source", metavar="SRC", help="folder of class images, for prior preservation")
    groups["set"].add_argument("--class-prompt", metavar="TEXT", default="", help="caption of all class images")
    groups["set"].add_argument("--class-weight", metavar="W", type=float, default=1.0, help="their loss weight [1]")
    groups["run"].add_argument("--seed", type=int, metavar="N", help="seed of random crops and tag shuffles")


def _add_flag(group: Any, setting: Setting) -> None:
    flags = ["--" + name.replace("_", "-") for name in (setting.name, *setting.old_names)]
    kind, limits = setting.type, setting.limits
    shown = _shown_default(setting)
    shared: dict[str, Any] = {"dest": setting.name, "default": None}
    shared["help"] = (limits.about + (f" [{shown}]" if shown else "")).replace("%", "%%")
    if kind is bool:
        action = argparse.BooleanOptionalAction if setting.default else "store_true"
        group.add_argument(*flags, action=action, **shared)
    elif kind is int and limits.choices:
        group.add_argument(*flags, type=int, choices=[int(choice) for choice in limits.choices], **shared)
    elif limits.choices or kind == COLOUR:
        group.add_argument(*flags, choices=limits.choices or tuple(COLOURS), **shared)
    elif kind == NUMBERS:
        group.add_argument(*flags, type=int, nargs="+", metavar="N", **shared)
    else:
        group.add_argument(*flags, type=kind, metavar="TEXT" if kind is str else "N", **shared)


def _shown_default(setting: Setting) -> str:
    if setting.type is bool or setting.default in (None, ""):
        return ""
    if setting.type == COLOUR:
        return next(name for name, colour in COLOURS.items() if colour == setting.default)
    if setting.type == NUMBERS:
        return " ".join(map(str, setting.default))
    return f"{setting.default:g}" if setting.type is float else str(setting.default)


def _check_models(args: argparse.Namespace) -> None:
    named = bool(args.vae or args.clip)
    if named and not args.comfyui:
        raise CacheError("--vae and --clip need --comfyui FOLDER")
    require_models(args)
    if args.comfyui and not named:
        raise CacheError("--comfyui: name a VAE with --vae, a text encoder with --clip, or both")


def _encoders(args: argparse.Namespace) -> dict[str, Any]:
    if not args.comfyui:
        return {"image_encoder": ReferenceImageEncoder(), "text_encoder": ReferenceTextEncoder()}
    from ..nodes.host.encoders import named_encoders  # importable only inside ComfyUI

    return named_encoders(args.vae, args.clip, args.clip_type)


def _encode(args: argparse.Namespace, plan: Plan) -> Report:
    with Progress(args, "Encoding", "items") as bar:

        def report(now: EncodeProgress) -> None:
            text = f"{now.phase}, {now.rate:,.1f}/s, {now.hits:,} reused, {byte_count(now.bytes)}"
            bar(now.done, now.total, text)

        try:
            return encode(plan, args.to, progress=report)
        except KeyboardInterrupt:
            print(f"Encoded entries are kept in {args.to}; run the same command again to continue.", file=sys.stderr)
            raise
