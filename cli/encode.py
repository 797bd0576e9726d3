"""`streamcache encode`: encode folders of images to a cache. Flags and TOML names come from the table of settings.

A TOML file has the settings of the plan at the top, and one [[source]] per folder with the settings of the source; a
[source.transform] table replaces the plan's image settings for that folder.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..dataset_cache import (
    PLAN_SETTINGS,
    SOURCE_SETTINGS,
    EncodeProgress,
    FolderSource,
    Plan,
    Report,
    Settings,
    encode,
    encode_captions_of,
    load_settings,
    load_source,
    load_transform,
    make_plan,
)
from ..lora_train import read_toml
from ..quantity import byte_count
from ..reference import ReferenceImageEncoder, ReferenceTextEncoder
from ..setting import COLOR, COLORS, NUMBERS, Setting
from .host import add_host_options, hand_over, require_models
from .output import Progress, show
from .parser import Parser, UsageError, flag_of, group_title, setting_help, usage_errors, value_name

SKIPPED = 3
_SEEDS = ("crop_seed", "caption_seed")
_OF_TEXTS = {"text_batch_size", "trim_padding"}  # the settings that --captions-of has
_CLASS = "class"  # the set of --class-source


def add_encode_flags(parser: Parser) -> None:
    parser.set_defaults(run=run)
    parser.usage = "%(prog)s SRC… --to CACHE [flags]\n       %(prog)s --captions-of CACHE [flags]"
    parser.add_argument("sources", nargs="*", metavar="SRC", help="Folders of images")
    parser.add_argument("--to", metavar="CACHE", help="Folder of the cache")
    text = "Instead of images: encode the captions of this cache that have no conditioning, as after an import"
    parser.add_argument("--captions-of", metavar="CACHE", help=text)
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings and further sources")
    parser.add_argument("--dry-run", action="store_true", help="Show what would be encoded, and stop")
    parser.add_argument("--strict", action="store_true", help="Exit with code 3 if files were skipped")
    _add_setting_flags(parser)
    models = add_host_options(parser)
    models.add_argument("--vae", metavar="NAME", help="VAE of ComfyUI, by its name in Load VAE")
    text = "Text encoder of ComfyUI, by its name in Load CLIP; repeat it for several"
    models.add_argument("--clip", action="append", default=[], metavar="NAME", help=text)
    text = "Kind of model that the text encoder is for, by its name in Load CLIP (sdxl, sd3, flux, …) [%(default)s]"
    models.add_argument("--clip-type", default="stable_diffusion", metavar="TYPE", help=text)


def run(args: argparse.Namespace) -> int:
    _check_targets(args)
    _check_models(args)
    with usage_errors():
        sources, settings = read_options(args)
    handed_over = hand_over(args)
    if handed_over is not None:
        return handed_over
    if args.captions_of:
        return _encode_captions(args, settings)
    plan = make_plan(sources, settings=settings, **_encoders(args))
    report = plan.report(args.to) if args.dry_run else _encode(args, plan)
    show(args, report.to_json(), report.lines())
    return SKIPPED if args.strict and report.skipped else 0


def read_options(args: argparse.Namespace) -> tuple[list[FolderSource], Settings]:
    """The sources and settings from flags and file. Flags win over the file."""
    values = read_toml(args.config) if args.config else {}
    listed = values.pop("source", [])
    if not isinstance(listed, list):
        raise UsageError(f"{args.config}: source = {listed!r}: expected tables [[source]]")
    given = {name: value for name, value in vars(args).items() if value is not None}
    if args.seed is not None:
        given = {**dict.fromkeys(_SEEDS, args.seed), **given}
    if args.config:
        load_settings(values, args.config)  # so that its errors name the file
    settings = load_settings(_merge(values, _only(PLAN_SETTINGS, given)))
    sources = [load_source(path, _only(SOURCE_SETTINGS, given), path) for path in args.sources]
    base = Path(args.config).parent if args.config else Path()
    sources += [_read_source(entry, base, f"{args.config}: [[source]] {n}") for n, entry in enumerate(listed, 1)]
    if args.class_source:
        prior = {"set": _CLASS, "prior": True, "prompt": args.class_prompt or None, "weight": args.class_weight}
        sources.append(load_source(args.class_source, prior, "--class-source"))
    return sources, settings


def _read_source(entry: Any, base: Path, place: str) -> FolderSource:
    values = dict(_as_table(entry, place))
    path = values.pop("path", None)
    if not isinstance(path, str):
        raise UsageError(f"{place}: path is missing: the folder of its images, relative to this file")
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
        raise UsageError(f"{place}: found {value!r}, expected a table")
    return value


def _add_setting_flags(parser: argparse.ArgumentParser) -> None:
    groups: dict[str, Any] = {}
    for setting in {**PLAN_SETTINGS, **SOURCE_SETTINGS}.values():
        name = setting.limits.group
        if name not in groups:
            groups[name] = parser.add_argument_group(group_title(name))
        _add_flag(groups[name], setting)
    groups["set"].add_argument(
        "--not-recursive", dest="recursive", action="store_false", default=None, help=argparse.SUPPRESS
    )
    prior = parser.add_argument_group("class image settings")
    prior.add_argument("--class-source", metavar="SRC", help="Folder of class images, for prior preservation")
    text = "Caption of all class images, instead of their caption files; needed if some have none"
    prior.add_argument("--class-prompt", metavar="TEXT", default="", help=text)
    prior.add_argument("--class-weight", metavar="X", type=float, default=1.0, help="Loss weight of class images [1]")
    groups["run"].add_argument("--seed", type=int, metavar="N", help="Seed of random crops and tag shuffles")


def _add_flag(group: Any, setting: Setting) -> None:
    flags = [flag_of(name) for name in (setting.name, *setting.old_names)]
    kind, choices = setting.type, setting.limits.choices
    shared: dict[str, Any] = {"dest": setting.name, "default": None, "help": setting_help(setting)}
    if kind is bool:
        action = argparse.BooleanOptionalAction if setting.default else "store_true"
        group.add_argument(*flags, action=action, **shared)
    elif kind is int and choices:
        group.add_argument(*flags, type=int, choices=[int(choice) for choice in choices], **shared)
    elif choices or kind == COLOR:
        group.add_argument(*flags, choices=choices or tuple(COLORS), **shared)
    elif kind == NUMBERS:
        group.add_argument(*flags, type=int, nargs="+", metavar=value_name(setting), **shared)
    else:
        group.add_argument(*flags, type=kind, metavar=value_name(setting), **shared)


def _check_models(args: argparse.Namespace) -> None:
    named = bool(args.vae or args.clip)
    if named and not args.comfyui:
        raise UsageError("--vae and --clip need --comfyui FOLDER")
    require_models(args)
    if args.comfyui and not named:
        raise UsageError("--comfyui: name a VAE with --vae, a text encoder with --clip, or both")


def _check_targets(args: argparse.Namespace) -> None:
    if not args.captions_of:
        if not args.to:
            raise UsageError("the following arguments are required: --to")
        return
    if args.to or args.sources or args.config or args.vae or args.dry_run:
        raise UsageError("--captions-of CACHE changes this cache; give no images, --to, --config, --vae or --dry-run")
    names = [*PLAN_SETTINGS, *SOURCE_SETTINGS, "seed", "class_source"]
    foreign = [name for name in names if getattr(args, name) is not None and name not in _OF_TEXTS]
    if foreign:
        raise UsageError(f"{flag_of(foreign[0])}: has no effect with --captions-of, whose captions are in the cache")


def _encoders(args: argparse.Namespace) -> dict[str, Any]:
    if not args.comfyui:
        return {"image_encoder": ReferenceImageEncoder(), "text_encoder": ReferenceTextEncoder()}
    from ..nodes.host.encoders import named_encoders  # importable only inside ComfyUI

    return named_encoders(args.vae, args.clip, args.clip_type)


def _encode_captions(args: argparse.Namespace, settings: Settings) -> int:
    with _progress(args, args.captions_of) as progress:
        report = encode_captions_of(
            args.captions_of, _encoders(args)["text_encoder"], settings=settings, progress=progress
        )
    show(args, report.to_json(), report.lines())
    return SKIPPED if args.strict and report.failed else 0


def _encode(args: argparse.Namespace, plan: Plan) -> Report:
    with _progress(args, args.to) as progress:
        return encode(plan, args.to, progress=progress)


@contextmanager
def _progress(args: argparse.Namespace, cache: str) -> Iterator[Callable[[EncodeProgress], None]]:
    """Shows the progress of a run, and what is left if it is interrupted."""
    with Progress(args, "Encoding", "items") as bar:

        def report(now: EncodeProgress) -> None:
            text = f"{now.phase}, {now.rate:,.1f}/s, {now.hits:,} reused, {byte_count(now.bytes)}"
            bar(now.done, now.total, text)

        try:
            yield report
        except KeyboardInterrupt:
            print(f"Encoded entries are kept in {cache}; run the same command again to continue.", file=sys.stderr)
            raise
