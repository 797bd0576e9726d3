"""`streamcache train`: trains a LoRA on a cache, with settings from flags, a TOML file, or both."""

import argparse
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..dataset_cache import CacheError, Setting, closest_name, open_cache, parse_setting
from ..lora_train import (
    RENAMED_SETTINGS,
    TRAIN_SETTINGS,
    Decode,
    Denoiser,
    TrainConfig,
    TrainError,
    TrainHooks,
    TrainResult,
    format_seconds,
    load_config,
    read_toml,
    train_in_run,
    with_sample_images,
)
from ..lora_train import TrainProgress as Step
from ..nodes.host import HOST_SETTINGS, HostSettings
from ..reference import ReferenceDenoiser, decode_images, load_model
from .host import add_host_options, hand_over, require_models
from .output import Progress, add_output_option, show

INTERRUPTED = 130
# Prefixes of the settings' flags among the parsed arguments.
_SETTING, _HOST = "setting_", "host_"
_OTHER_FLAGS = ("dataset", "out", "config", "runs", "resume", "model", "vae", "comfyui", "reference", "json")


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    text = "train a LoRA on a cache"
    parser = subparsers.add_parser("train", help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("--dataset", required=True, metavar="CACHE", help="folder of the cache")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="LoRA file to write (.safetensors)")
    parser.add_argument("--config", type=Path, metavar="TOML", help="file with settings; flags override it")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="folder for runs (default: runs, next to --out)")
    parser.add_argument("--resume", action="store_true", help='resume the run of this name, same as mode = "resume"')
    add_model_options(parser)
    add_output_option(parser)
    add_setting_flags(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    config = collect_config(args)
    _check_models(args)
    if args.out.suffix != ".safetensors" or args.out.is_dir():  # reported now, not after hours of training
        raise TrainError(f"--out {args.out}: expected a file name that ends in .safetensors")
    dataset = open_cache(args.dataset)
    handed_over = hand_over(args)
    if handed_over is not None:
        return handed_over
    denoiser, decode = open_model(args, config)
    config = replace(with_sample_images(config) if args.vae else config, name=config.name or args.out.stem)
    runs = args.runs or args.out.parent / "runs"
    with stop_on_interrupt() as stop, Progress(args, "Training", "steps") as bar:
        hooks = TrainHooks(progress=lambda step: bar(step.step, step.steps, describe_step(step)), stop=stop.is_set)
        result, opened = train_in_run(
            denoiser, dataset, config, runs, lambda run: args.out, lambda run: nullcontext(hooks), decode
        )
    show(args, {**asdict(result), "run": str(opened.folder)}, describe_result(result, opened.folder))
    return INTERRUPTED if result.stopped else 0


def add_model_options(parser: argparse.ArgumentParser) -> None:
    group = add_host_options(parser)
    text = (
        "with --comfyui: name of a diffusion model or checkpoint there; with --reference: weights of the reference "
        "model (`python dev.py demo` writes demo/base.safetensors)"
    )
    group.add_argument("--model", required=True, metavar="FILE", help=text)
    text = "one of ComfyUI's VAEs, for sample images: a few per run, or as set by --sample-every"
    group.add_argument("--vae", metavar="NAME", help=text)
    for setting in HOST_SETTINGS.values():
        _add_flag(group, setting, _flag(setting.name), _help(setting), _HOST + setting.name)


def open_model(args: argparse.Namespace, config: TrainConfig) -> tuple[Denoiser, Decode | None]:
    """The model, and the function that turns its latents into images."""
    if not args.comfyui:
        return ReferenceDenoiser(load_model(args.model)), decode_images
    given = {name: parse_setting(HOST_SETTINGS[name], text) for name, text in _given(args, _HOST).items()}
    # Importable only inside ComfyUI.
    from ..nodes.host.encoders import open_model, open_vae
    from ..nodes.host.model import make_denoiser

    denoiser = make_denoiser(open_model(args.model), config, HostSettings(**given))
    if not args.vae:
        return denoiser, None
    vae = open_vae(args.vae)
    return denoiser, lambda latents: denoiser.decode(vae, latents)


def add_setting_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for every setting; flags under old names work too but are not listed."""
    groups: dict[str, Any] = {}
    for setting in TRAIN_SETTINGS.values():
        name = setting.limits.group
        if name not in groups:
            groups[name] = parser.add_argument_group(f"{name} settings")
        _add_flag(groups[name], setting, _flag(setting.name), _help(setting), _SETTING + setting.name)
    for old, new in RENAMED_SETTINGS.items():
        _add_flag(parser, TRAIN_SETTINGS[new], _flag(old), argparse.SUPPRESS, _SETTING + old)
    _name_unknown_flags(parser)


def collect_config(args: argparse.Namespace) -> TrainConfig:
    """Settings from the file, overridden by flags; errors name the one that is wrong."""
    values = read_toml(args.config) if args.config else {}
    if args.config:
        load_config(values, str(args.config), notice=lambda words: None)  # so that its errors name the file
    given = _given(args, _SETTING).items()
    flags = {name: parse_setting(TRAIN_SETTINGS[RENAMED_SETTINGS.get(name, name)], text) for name, text in given}
    if args.resume:
        flags["mode"] = "resume"
    current = {RENAMED_SETTINGS.get(name, name): value for name, value in values.items()}
    for name in flags:
        current.pop(RENAMED_SETTINGS.get(name, name), None)
    return load_config({**current, **flags}, "settings", notice=lambda words: print(words, file=sys.stderr))


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """The first Ctrl-C lets the run finish its step and save; the second one interrupts at once."""
    asked = threading.Event()

    def ask(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        print("\nStopping after this step and saving. Press Ctrl-C again to stop at once.", file=sys.stderr)

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def describe_step(step: Step) -> str:
    return f"loss {step.smooth:.4f}  {step.rate:.1f} steps/s  data wait {step.data_wait:.1%}"


def describe_result(result: TrainResult, folder: Path) -> list[str]:
    lines = [
        f"Trained {result.step:,} of {result.steps:,} steps in {format_seconds(result.seconds)}, "
        f"{result.data_wait:.1%} of the time waiting for data",
        f"Saved {result.lora}; report in {folder / 'report.html'}",
    ]
    if result.stopped:
        lines.append("Stopped early; to continue, run the same command with --resume")
    return lines


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _help(setting: Setting) -> str:
    limits = setting.limits
    words = limits.about + (f" ({', '.join(limits.choices)})" if limits.choices else "")
    default = setting.default
    return f"{words} [{default}]".replace("%", "%%") if default not in ("", (), {}) else words.replace("%", "%%")


def _add_flag(parser: argparse._ActionsContainer, setting: Setting, flag: str, text: str, dest: str) -> None:
    switch: dict[str, Any] = {"nargs": "?", "const": "true"} if setting.type is bool else {}
    parser.add_argument(flag, dest=dest, metavar="…", help=text, **switch)


def _given(args: argparse.Namespace, prefix: str) -> dict[str, str]:
    """The flags that were given, by name of their setting."""
    found = {name: value for name, value in vars(args).items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): value for name, value in found.items() if value is not None}


def _check_models(args: argparse.Namespace) -> None:
    needed = ["vae"] if args.vae else [name.replace("_", "-") for name in _given(args, _HOST)]
    if needed and not args.comfyui:
        raise CacheError(f"--{needed[0]}: needs --comfyui FOLDER")
    require_models(args)


def _name_unknown_flags(parser: argparse.ArgumentParser) -> None:
    """Suggest the closest setting, where argparse would only report unrecognised arguments."""
    parse_known = parser.parse_known_args

    def parse_and_name(args: Iterable[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, rest = parse_known(None if args is None else list(args), namespace)
        for flag in rest:
            if flag.startswith("--"):
                name = flag[2:].partition("=")[0].replace("-", "_")
                known = [*TRAIN_SETTINGS, *HOST_SETTINGS, *_OTHER_FLAGS]
                parser.error(f'unknown setting "{name}"{closest_name(name, known)}')
        return found, rest

    parser.parse_known_args = parse_and_name
    parser.allow_abbrev = False
