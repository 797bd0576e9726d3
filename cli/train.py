"""`streamcache train`: trains a LoRA on a cache, with settings from flags, a TOML file, or both."""

import argparse
import json
import shlex
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..dataset_cache import open_cache, use_cache_limit
from ..lora_train import (
    RENAMED_SETTINGS,
    TRAIN_SETTINGS,
    Decode,
    Denoiser,
    Export,
    Ranks,
    Run,
    TrainConfig,
    TrainHooks,
    TrainResult,
    check_training,
    format_seconds,
    latest_run,
    load_config,
    make_prompts,
    open_ranks,
    open_run,
    read_toml,
    report_memory,
    train_in_run,
    with_sample_images,
)
from ..lora_train import TrainProgress as Step
from ..nodes.host import HOST_SETTINGS, HostSettings
from ..quantity import plural
from ..reference import ReferenceDenoiser, decode_images, load_model
from ..setting import Setting, parse_setting
from .host import add_host_options, hand_over, require_models
from .jobs import add_ranks_flag, asked_to_stop, start_ranks
from .output import Progress, show
from .parser import Parser, UsageError, flag_of, group_title, setting_help, usage_errors, value_name
from .prompts import add_prompt_flags, check_prompts, encode_prompts
from .recipe import HELP as RECIPE_HELP
from .recipe import find_recipe, recipe_values
from .turn import take_turn

INTERRUPTED = 130
LISTED = 6  # LoRA files that are named at the end
# Prefixes of the settings' flags among the parsed arguments.
_SETTING, _HOST = "setting_", "host_"


def add_train_flags(parser: Parser) -> None:
    parser.set_defaults(run=run)
    parser.usage = "%(prog)s --dataset CACHE --model NAME --out FILE [flags]"
    parser.allow_abbrev = False
    parser.add_argument("--dataset", required=True, metavar="CACHE", help="Folder of the cache")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="LoRA file to write (.safetensors)")
    text = "Most bytes of local copies of a remote dataset, such as 20GB; 0: none (default: STREAMCACHE_CACHE_LIMIT)"
    parser.add_argument("--cache-limit", metavar="SIZE", help=text)
    parser.add_argument("--config", type=Path, metavar="TOML", help="File with settings; flags override it")
    parser.add_argument("--recipe", metavar="RECIPE", help=f"Settings to begin with: {RECIPE_HELP}; your own win")
    text = "Settings as a JSON object, such as the config in run.json; they override --config, flags override them"
    parser.add_argument("--settings", metavar="JSON", help=text)
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="Folder of the runs (default: runs, next to --out)")
    parser.add_argument(
        "--resume", action="store_true", help="Resume the run --name, or the latest of this output file"
    )
    text = "Say how much memory the training needs and whether it fits, and do not train; exits with 1 if it does not"
    parser.add_argument("--dry-run", action="store_true", help=text)
    add_ranks_flag(parser)
    parser.add_argument("--turn", type=Path, help=argparse.SUPPRESS)  # of a sweep or a worker
    add_model_options(parser)
    add_setting_flags(parser)


def run(args: argparse.Namespace) -> int:
    config = check_arguments(args)
    started = start_ranks(args)
    if started is not None:
        return started
    with open_ranks() as ranks:
        return _run(args, config, ranks)


def _run(args: argparse.Namespace, config: TrainConfig, ranks: Ranks) -> int:
    if args.cache_limit:
        with usage_errors():
            use_cache_limit(args.cache_limit)
    dataset = open_cache(args.dataset)
    handed_over = hand_over(args)
    if handed_over is not None:
        return handed_over
    note = _say_recipe(args, config) if args.recipe else ""
    with take_turn(args.turn) as ended:
        words, negative = ([], None) if args.dry_run else encode_prompts(args)
        denoiser, decode = open_model(args, config, negative)
        runs = runs_folder(args)
        config = with_sample_images(config) if args.vae or args.prompt else config
        config = replace(config, name=run_name(config, args.out.stem, runs))
        if args.dry_run:
            with open_run(runs, config.name, config.mode) as run:
                check_training(denoiser, dataset, config, run, decode, args.out)
            memory = report_memory(denoiser, dataset, config)
            show(args, {**memory.to_json(), "fits": memory.fits}, memory.lines())
            return 0 if memory.fits else 1
        # Of a training for a sweep or a worker, only the result is read by a program.
        quiet = argparse.Namespace(json=args.json and not args.turn)
        asked = asked_to_stop()
        with stop_on_interrupt() as stop, Progress(quiet, "Training", "steps") as bar:
            hooks = TrainHooks(
                progress=lambda step: bar(step.step, step.steps, describe_step(step)),
                exported=lambda written: bar.say(describe_export(written)),
                stop=lambda: stop.is_set() or ended() or asked(),
            )
            if not ranks.leads:
                hooks = TrainHooks(stop=hooks.stop)
            if ended():
                raise KeyboardInterrupt
            result, opened = train_in_run(
                denoiser, dataset, config, runs, lambda run: args.out, lambda run: _recorded(args, run, note, hooks),
                decode, make_prompts(dataset, args.prompt, words) or None, ranks,
            )  # fmt: skip
    if ranks.leads:
        show(args, {**asdict(result), "run": str(opened.folder)}, describe_result(result, opened.folder))
    return INTERRUPTED if result.stopped else 0


def check_arguments(args: argparse.Namespace, writes: bool = True) -> TrainConfig:
    """The settings of a training, after every check that needs neither its dataset nor its model.

    `writes` is whether it writes --out itself.
    """
    with usage_errors():
        config = collect_config(args)
    _check_models(args)
    if args.out.suffix != ".safetensors" or args.out.is_dir():  # reported now, not after hours of training
        raise UsageError(f"--out {args.out}: expected a file name that ends in .safetensors")
    if config.mode == "new" and writes and args.out.exists() and not args.dry_run:  # which writes nothing
        raise UsageError(
            f"--out {args.out}: exists; give another name, or --resume to continue its run, or --mode overwrite"
        )
    return config


def is_setting(dest: str) -> bool:
    """Whether a parsed argument is the flag of a trainer setting."""
    return dest.startswith(_SETTING)


def runs_folder(args: argparse.Namespace) -> Path:
    return args.runs or args.out.parent / "runs"


def add_model_options(parser: Parser) -> None:
    group = add_host_options(parser)
    text = (
        "With --comfyui: name of a diffusion model or checkpoint there. With --reference: weights of the reference "
        "model (`python dev.py demo` writes demo/base.safetensors)"
    )
    group.add_argument("--model", required=True, metavar="NAME", help=text)
    text = "VAE of ComfyUI, for sample images: eight times per run, or as set by --sample-every"
    group.add_argument("--vae", metavar="NAME", help=text)
    add_prompt_flags(group, "for sample images, encoded once before the training, instead of captions of the dataset")
    for setting in HOST_SETTINGS.values():
        _add_flag(group, setting, flag_of(setting.name), setting_help(setting), _HOST + setting.name)


def describe_model(args: argparse.Namespace) -> dict[str, Any]:
    """The model and ComfyUI's settings for it, which the reference model has none of, as run.json has them."""
    return {"model": args.model, "host": asdict(_host_settings(args)) if args.comfyui else {}}


def open_model(args: argparse.Namespace, config: TrainConfig, negative: Any = None) -> tuple[Denoiser, Decode | None]:
    """The model, and the function that turns its latents into images."""
    if not args.comfyui:
        return ReferenceDenoiser(load_model(args.model)), decode_images
    host = _host_settings(args)
    # Importable only inside ComfyUI.
    from ..nodes.host.encoders import open_model, open_vae
    from ..nodes.host.model import make_denoiser

    denoiser = make_denoiser(open_model(args.model), config, host, negative)
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
            groups[name] = parser.add_argument_group(group_title(name))
        _add_flag(groups[name], setting, flag_of(setting.name), setting_help(setting), _SETTING + setting.name)
    for old, new in RENAMED_SETTINGS.items():
        _add_flag(parser, TRAIN_SETTINGS[new], flag_of(old), argparse.SUPPRESS, _SETTING + old)


def collect_config(args: argparse.Namespace) -> TrainConfig:
    """Settings from the file, overridden by --settings, overridden by flags; errors name the one that is wrong."""
    values: dict[str, Any] = {}
    if args.config:
        values = _override(values, read_toml(args.config), str(args.config))
    if args.settings:
        values = _override(values, parse_settings(args.settings), "--settings")
    given = _given(args, _SETTING).items()
    flags = {name: parse_setting(TRAIN_SETTINGS[RENAMED_SETTINGS.get(name, name)], text) for name, text in given}
    if args.resume:
        flags["mode"] = "resume"
    own = _without(values, flags) | flags
    recipe = recipe_values(args.recipe, TRAIN_SETTINGS, own)
    return load_config({**recipe, **own}, "settings", notice=lambda words: print(words, file=sys.stderr))


def _host_settings(args: argparse.Namespace) -> HostSettings:
    with usage_errors():
        given = {name: parse_setting(HOST_SETTINGS[name], text) for name, text in _given(args, _HOST).items()}
        return HostSettings(**{**recipe_values(args.recipe, HOST_SETTINGS), **given})


def _say_recipe(args: argparse.Namespace, config: TrainConfig) -> str:
    """Print what the recipe sets and why, and which settings of the file and the flags win; the note for the run."""
    recipe, used = find_recipe(args.recipe), {**config.to_dict(), **asdict(_host_settings(args))}
    own = {name: used[name] for name, value in recipe.values().items() if used[name] != value}
    print("\n".join(recipe.explain(own)), file=sys.stderr)
    return recipe.note(own)


@contextmanager
def _recorded(args: argparse.Namespace, run: Run, note: str, hooks: TrainHooks) -> Iterator[TrainHooks]:
    """A run that begins, with what the engine does not know of it in its run.json."""
    run.describe(**describe_model(args), notes=note)
    yield hooks


def parse_settings(text: str) -> dict[str, Any]:
    """The settings in a JSON object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--settings: not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f'--settings: found {type(found).__name__}; expected an object, such as {{"rank": 8}}')
    return found


def _override(values: dict[str, Any], others: dict[str, Any], place: str) -> dict[str, Any]:
    load_config(others, place, notice=lambda words: None)  # so that its errors name the place
    return _without(values, others) | others


def _without(values: dict[str, Any], others: Iterable[str]) -> dict[str, Any]:
    """The values without those of the same settings, also under other names."""
    named = {RENAMED_SETTINGS.get(name, name) for name in others}
    return {name: value for name, value in values.items() if RENAMED_SETTINGS.get(name, name) not in named}


def run_name(config: TrainConfig, stem: str, runs: Path) -> str:
    """The name that was given, or that of the output file. To resume, the latest run of that name: stem, stem-2, …"""
    if config.name or config.mode != "resume":
        return config.name or stem
    return latest_run(runs, stem) or stem


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


def describe_export(written: Export) -> str:
    held_out = "" if written.validation is None else f", validation loss {written.validation:.4f}"
    loss = "" if written.loss is None else f", loss {written.loss:.4f}"
    return f"Saved {written.path.name} (step {written.step:,}{loss}{held_out})"


def describe_result(result: TrainResult, folder: Path) -> list[str]:
    lines = [
        f"Trained {result.step:,} of {result.steps:,} steps in {format_seconds(result.seconds)}, "
        f"{result.data_wait:.1%} of the training time waiting for data",
        *([f"Remote dataset: {result.traffic}"] if result.traffic else []),
        f"Saved {result.lora}; report in {folder / 'report.html'}",
    ]
    if result.exports:
        names = ", ".join(
            [*(file.name for file in result.exports[:LISTED]), *(["…"] if len(result.exports) > LISTED else [])]
        )
        lines.append(f"{plural(len(result.exports), 'LoRA file')} of earlier steps in {result.lora.parent}: {names}")
    if result.missing:
        lines.append(f"Missing LoRA files, moved or deleted since: {', '.join(result.missing)}")
    if result.stopped:
        lines.append(
            f"Stopped early; to continue, run the same command with --resume --name {shlex.quote(folder.name)}"
        )
    return lines


def _add_flag(parser: argparse._ActionsContainer, setting: Setting, flag: str, text: str, dest: str) -> None:
    switch: dict[str, Any] = {"nargs": "?", "const": "true"} if setting.type is bool else {}
    parser.add_argument(flag, dest=dest, metavar=value_name(setting), help=text, **switch)


def _given(args: argparse.Namespace, prefix: str) -> dict[str, str]:
    """The flags that were given, by name of their setting."""
    found = {name: value for name, value in vars(args).items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): value for name, value in found.items() if value is not None}


def _check_models(args: argparse.Namespace) -> None:
    needed = ["vae"] if args.vae else [name.replace("_", "-") for name in _given(args, _HOST)]
    if needed and not args.comfyui:
        raise UsageError(f"--{needed[0]}: needs --comfyui FOLDER")
    require_models(args)
    check_prompts(args)
    if args.comfyui and args.prompt and not args.vae:
        raise UsageError("--prompt: sample images need a VAE; add --vae NAME")
