"""`streamcache train`: a LoRA from a cached dataset, with every setting as a flag, from a file, or both."""

import argparse
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..dataset_cache import Setting, closest_name, open_cache, parse_setting
from ..lora_train import (
    RENAMED,
    SETTINGS,
    Hooks,
    Result,
    TrainConfig,
    TrainError,
    format_seconds,
    load_config,
    read_config,
    train_in_run,
    with_samples,
)
from ..lora_train import Progress as Step
from .host import hand_over
from .model import add_model_options, open_model
from .output import add_output_option, show
from .progress import Progress

INTERRUPTED = 130


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    text = "train a LoRA on a cached dataset"
    parser = subparsers.add_parser("train", help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("--dataset", required=True, metavar="CACHE", help="the folder of the cached dataset")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="the LoRA file to write (.safetensors)")
    parser.add_argument("--config", type=Path, metavar="TOML", help="settings from a file; flags win over it")
    parser.add_argument(
        "--runs", type=Path, metavar="FOLDER", help="where runs are kept (default: runs beside the file)"
    )
    parser.add_argument("--resume", action="store_true", help='go on with the run of this name: mode = "resume"')
    add_model_options(parser)
    add_output_option(parser)
    add_setting_flags(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    config = collect_config(args)
    if args.out.suffix != ".safetensors" or args.out.is_dir():  # found out now, not after hours of training
        raise TrainError(f"--out {args.out}: expected a file whose name ends in .safetensors")
    dataset = open_cache(args.dataset)
    handed_over = hand_over(args)
    if handed_over is not None:
        return handed_over
    denoiser, decode = open_model(args, config)
    config = replace(with_samples(config) if args.vae else config, name=config.name or args.out.stem)
    runs = args.runs or args.out.parent / "runs"
    with stop_on_interrupt() as stop, Progress(args, "Training", "steps") as bar:
        hooks = Hooks(progress=lambda step: bar(step.step, step.steps, describe_step(step)), stop=stop.is_set)
        result, opened = train_in_run(
            denoiser, dataset, config, runs, lambda run: args.out, lambda run: nullcontext(hooks), decode
        )
    show(args, {**asdict(result), "run": str(opened.folder)}, describe_result(result, opened.folder))
    return INTERRUPTED if result.stopped else 0


def add_setting_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for every setting under its own name, and silently under its old ones."""
    groups: dict[str, Any] = {}
    for setting in SETTINGS.values():
        name = setting.limits.group
        if name not in groups:
            groups[name] = parser.add_argument_group(f"{name} settings")
        _add_flag(groups[name], setting, _flag(setting.name), _help(setting))
    for old, new in RENAMED.items():
        _add_flag(parser, SETTINGS[new], _flag(old), argparse.SUPPRESS, old)
    _name_unknown_flags(parser)


def collect_config(args: argparse.Namespace) -> TrainConfig:
    """Settings of the file, then of the flags; errors say which of the two they are in."""
    values = read_config(args.config) if args.config else {}
    if args.config:
        load_config(values, str(args.config), notice=lambda words: None)  # so that its errors bear its name
    flags = {name: parse_setting(SETTINGS[RENAMED.get(name, name)], text) for name, text in _given(args)}
    if args.resume:
        flags["mode"] = "resume"
    current = {RENAMED.get(name, name): value for name, value in values.items()}
    for name in flags:
        current.pop(RENAMED.get(name, name), None)
    return load_config({**current, **flags}, "settings", notice=lambda words: print(words, file=sys.stderr))


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """The first Ctrl-C asks the run to stop after its step and save; the second one interrupts at once."""
    asked = threading.Event()

    def ask(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        print("\nStopping after this step; the work is saved. Again to stop at once.", file=sys.stderr)

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


def describe_result(result: Result, folder: Path) -> list[str]:
    lines = [
        f"Trained {result.step:,} of {result.steps:,} steps in {format_seconds(result.seconds)}, "
        f"{result.data_wait:.1%} of it waiting for data",
        f"Saved {result.lora}; report in {folder / 'report.html'}",
    ]
    if result.stopped:
        lines.append("Stopped early; the same command with --resume goes on")
    return lines


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _help(setting: Setting) -> str:
    limits = setting.limits
    words = limits.about + (f" ({', '.join(limits.choices)})" if limits.choices else "")
    default = setting.default
    return f"{words} [{default}]".replace("%", "%%") if default not in ("", (), {}) else words.replace("%", "%%")


def _add_flag(parser: Any, setting: Setting, flag: str, words: str, name: str = "") -> None:
    options: dict[str, Any] = {"dest": f"setting_{name or setting.name}", "help": words, "metavar": "…"}
    if setting.type is bool:
        options |= {"nargs": "?", "const": "true"}
    parser.add_argument(flag, **options)


def _given(args: argparse.Namespace) -> list[tuple[str, str]]:
    prefix = "setting_"
    return [
        (name[len(prefix) :], value)
        for name, value in vars(args).items()
        if name.startswith(prefix) and value is not None
    ]


def _name_unknown_flags(parser: argparse.ArgumentParser) -> None:
    """argparse would only say that an argument is not recognised."""
    parse_known = parser.parse_known_args

    def parse_and_name(
        arguments: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, rest = parse_known(arguments, namespace)
        for flag in rest:
            if flag.startswith("--"):
                name = flag[2:].partition("=")[0].replace("-", "_")
                known = [*SETTINGS, "dataset", "out", "config", "resume"]
                parser.error(f'no setting is named "{name}"{closest_name(name, known)}')
        return found, rest

    parser.parse_known_args = parse_and_name
    parser.allow_abbrev = False
