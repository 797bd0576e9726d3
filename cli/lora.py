"""`streamcache lora`: shows LoRA files, and writes them at another rank, as a sum or average, in another naming."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import TrainError
from ..lora_train import (
    LORA_DTYPES,
    RULES,
    Denoiser,
    RankRule,
    ToolReport,
    TrainConfig,
    average_loras,
    check_weights,
    convert_lora,
    decaying_weights,
    inspect_lora,
    list_exports,
    merge_loras,
    open_run_file,
    resize_lora,
)
from ..reference import ReferenceDenoiser, load_model
from .host import add_host_options, hand_over
from .output import Progress, show
from .parser import Parser, UsageError, usage_errors

PROBLEMS_FOUND = 3
_NAMINGS = ("comfyui", "kohya", "diffusers")


def add_lora_flags(parser: Parser) -> None:
    tools: dict[str, tuple[str, Callable[[Parser], None]]] = {
        "info": ("Show kinds, ranks, blocks, norms, hashes and metadata of a LoRA file", _add_info_flags),
        "resize": ("Write a LoRA at another rank, and say how much of it is kept", _add_resize_flags),
        "merge": ("Write one LoRA that does what several do together", _add_merge_flags),
        "average": ("Write the average of LoRAs, such as those of one run", _add_average_flags),
        "convert": ("Write a LoRA in another naming or number type", _add_convert_flags),
    }
    tool_parsers = parser.add_subparsers(title="tools", metavar="tool", required=True, help="What to do")
    for name, (summary, add_flags) in tools.items():
        tool_parsers.add_parser(name, help=summary, description=f"{summary}.", add_flags=_with_json(add_flags))


def _with_json(add_flags: Callable[[Parser], None]) -> Callable[[Parser], None]:
    """`--json` may come before or after the tool: without a default here, the first one is not overwritten."""

    def add(parser: Parser) -> None:
        add_flags(parser)
        text = "Print one JSON object and no progress bar"
        parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=text)

    return add


def _add_info_flags(parser: Parser) -> None:
    parser.set_defaults(run=run_info)
    parser.add_argument("file", type=Path, metavar="FILE", help="LoRA file (.safetensors)")


def _add_resize_flags(parser: Parser) -> None:
    parser.set_defaults(run=run_resize)
    parser.add_argument("file", type=Path, metavar="FILE", help="LoRA file (.safetensors)")
    _add_rank_flags(parser, required=True)
    _add_output_flags(parser)


def _add_merge_flags(parser: Parser) -> None:
    parser.set_defaults(run=run_merge)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="LoRA files of one base model")
    _add_weights(parser, "Strength of each file, in order [1 each]")
    _add_rank_flags(parser, required=False)
    _add_output_flags(parser)


def _add_average_flags(parser: Parser) -> None:
    parser.set_defaults(run=run_average)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="LoRA files, the oldest first")
    parser.add_argument("--exports-of", type=Path, metavar="RUN", help="Folder of a run: all its LoRA files")
    _add_weights(parser, "Weight of each file, in order [1 each]")
    text = "Weights of a moving average with this decay; the last file counts most"
    parser.add_argument("--decay", type=float, metavar="X", help=text)
    text = "What is averaged: what the files do [change], or their tensors as they are, only for files of one run"
    parser.add_argument("--of", choices=("change", "factors"), default="change", help=text)
    _add_rank_flags(parser, required=False)
    _add_output_flags(parser)


def _add_convert_flags(parser: Parser) -> None:
    parser.set_defaults(run=run_convert)
    parser.add_argument("file", type=Path, metavar="FILE", help="LoRA file (.safetensors)")
    parser.add_argument("--naming", choices=_NAMINGS, help="Names of the layers in the new file [as they are]")
    _add_output_flags(parser)
    group = add_host_options(parser)
    text = "Name of the diffusion model or checkpoint that the LoRA is for; it knows every naming of its layers"
    group.add_argument("--model", metavar="NAME", help=text)


def run_info(args: argparse.Namespace) -> int:
    with Progress(args, "Reading", "layers") as progress:
        info = inspect_lora(args.file, progress)
    show(args, info.to_json(), info.lines())
    return PROBLEMS_FOUND if info.problems or not all(info.hashes.values()) else 0


def run_resize(args: argparse.Namespace) -> int:
    rule = _rank_rule(args)
    assert rule is not None
    with Progress(args, "Resizing", "layers") as progress:
        report = resize_lora(args.file, args.out, rule, args.dtype, args.overwrite, progress)
    return _show_report(args, report)


def run_merge(args: argparse.Namespace) -> int:
    rule, weights = _rank_rule(args), _weights(args, args.files)
    with Progress(args, "Merging", "layers") as progress:
        report = merge_loras(args.files, args.out, weights, rule, args.dtype, args.overwrite, progress)
    return _show_report(args, report)


def run_average(args: argparse.Namespace) -> int:
    if bool(args.files) == bool(args.exports_of):
        raise UsageError("give LoRA files, or the folder of a run with --exports-of")
    if args.weights and args.decay is not None:
        raise UsageError("--weights and --decay exclude each other; give one of them")
    files = args.files or _exports_of(args.exports_of)
    with usage_errors():
        weights = _weights(args, files) if args.decay is None else decaying_weights(len(files), args.decay)
    rule = _rank_rule(args)
    with Progress(args, "Averaging", "layers") as progress:
        report = average_loras(files, args.out, weights, args.of, rule, args.dtype, args.overwrite, progress)
    return _show_report(args, report)


def _exports_of(folder: Path) -> list[Path]:
    if open_run_file(folder / "run.json") is None:
        raise TrainError(f"--exports-of {folder}: not the folder of a run; expected one with a run.json")
    return [export.path for export in list_exports(folder)]


def run_convert(args: argparse.Namespace) -> int:
    chosen = bool(args.comfyui) + args.reference
    if chosen > 1 or bool(chosen) != bool(args.model):
        raise UsageError("--model NAME goes with --comfyui FOLDER or with --reference")
    if not args.naming and not args.dtype:
        raise UsageError("nothing to convert; give --naming, --dtype or both")
    handed_over = hand_over(args)
    if handed_over is not None:
        return handed_over
    with Progress(args, "Converting", "layers") as progress:
        denoiser = _open_model(args) if args.model else None
        report = convert_lora(args.file, args.out, args.naming, args.dtype, denoiser, args.overwrite, progress)
    return _show_report(args, report)


def _open_model(args: argparse.Namespace) -> Denoiser:
    if args.reference:
        return ReferenceDenoiser(load_model(args.model))
    # Importable only inside ComfyUI.
    from ..nodes.host import HostSettings
    from ..nodes.host.encoders import open_model
    from ..nodes.host.model import make_denoiser

    return make_denoiser(open_model(args.model), TrainConfig(), HostSettings())


def _add_weights(parser: Parser, text: str) -> None:
    parser.verbatim.add("--weights")
    parser.add_argument("--weights", metavar="X,…", help=text)


def _add_rank_flags(parser: Parser, required: bool) -> None:
    unless = "" if required else " [merge: the sum of ranks; average: the largest rank of each layer]"
    parser.add_argument("--rank", type=int, required=required, metavar="N", help=f"The most rank of a layer{unless}")
    text = "The most rank of convolutions larger than 1×1 [as --rank]"
    parser.add_argument("--conv-rank", type=int, metavar="N", help=text)
    text = (
        f"With --rank: as little as reaches a target, by one of {', '.join(RULES)}; "
        "energy=0.95 keeps 95%% of the squared norm"
    )
    parser.add_argument("--dynamic", metavar="RULE=X", help=text)


def _add_output_flags(parser: Parser) -> None:
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="File to write (.safetensors)")
    parser.add_argument("--dtype", choices=LORA_DTYPES, help="Number type of the new file [that of the old one]")
    parser.add_argument("--overwrite", action="store_true", help="Replace FILE if it exists")


def _rank_rule(args: argparse.Namespace) -> RankRule | None:
    if args.rank is None:
        if args.conv_rank is not None or args.dynamic:
            raise UsageError("--conv-rank and --dynamic go with --rank N, the most that a layer gets")
        return None
    name, _, target = (args.dynamic or "").partition("=")
    with usage_errors():
        return RankRule(args.rank, args.conv_rank, name, _number(target, "--dynamic") if name else 0.0)


def _weights(args: argparse.Namespace, files: Sequence[Path]) -> Sequence[float] | None:
    if not args.weights:
        return None
    with usage_errors():
        return check_weights(files, [_number(text, "--weights") for text in args.weights.split(",")])


def _number(text: str, flag: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f'{flag}: found "{text}", expected a number') from None


def _show_report(args: argparse.Namespace, report: ToolReport) -> int:
    facts: dict[str, Any] = asdict(report)
    show(args, facts, report.lines())
    return 0
