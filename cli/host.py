"""Runs a command inside ComfyUI: with its Python and its models, but without a server."""

import argparse
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..dataset_cache import CacheError
from .parser import Parser, UsageError
from .signals import INTERRUPTING, passed_on_to

INSIDE = False  # whether this process already is ComfyUI's; nodes/host/headless.py sets it
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_CAUSES = {9: "; if memory ran out, lower the batch size or the resolution"}
HEADLESS = Path(__file__).resolve().parent.parent / "nodes" / "host" / "headless.py"


def add_host_options(parser: Parser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("models")
    parser.verbatim.add("--comfyui-args")
    group.add_argument("--comfyui", metavar="FOLDER", help="ComfyUI's folder; its Python and its models are used")
    group.add_argument(
        "--comfyui-python", metavar="FILE", help="ComfyUI's Python (default: COMFYUI_PYTHON, or its .venv or venv)"
    )
    group.add_argument(
        "--comfyui-args", default="", metavar="TEXT", help='Options for ComfyUI, such as "--cpu --base-directory D"'
    )
    text = "Use the small built-in model instead of ComfyUI, to try things out; it fits no real model"
    group.add_argument("--reference", action="store_true", help=text)
    return group


def require_models(args: argparse.Namespace) -> None:
    """Refuse a command that chooses neither ComfyUI nor the reference model, or both."""
    if args.comfyui and args.reference:
        raise UsageError("--comfyui and --reference exclude each other; give one of them")
    if not args.comfyui and not args.reference:
        raise UsageError(
            "no models given; add --comfyui FOLDER to use those of your ComfyUI, "
            "or --reference to try it with the small built-in model"
        )


def hand_over(args: argparse.Namespace) -> int | None:
    """Run this command inside ComfyUI and return its exit code; None if it should run in this process."""
    if not args.comfyui or INSIDE:
        return None
    folder = Path(args.comfyui).expanduser().resolve()
    if not (folder / "main.py").is_file() or not (folder / "comfy").is_dir():
        raise UsageError(f"--comfyui {args.comfyui}: not a ComfyUI folder; give the one that contains main.py")
    options = _split(args.comfyui_args)
    command = [find_python(folder, args.comfyui_python), HEADLESS, folder, json.dumps(options), *args.arguments]
    process = subprocess.Popen(command, env={**os.environ, **environment(options)})
    with passed_on_to(process):
        code = None
        while code is None:
            with suppress(KeyboardInterrupt):  # the terminal sent it to the child as well, which saves its work
                code = process.wait()
    return _exit_code(code)


def _exit_code(code: int) -> int:
    """The exit code of this command if ComfyUI's process ended with `code`. A crash is an error with its reason."""
    if code in INTERRUPTING:  # it came before the process could handle it, while torch was imported
        raise KeyboardInterrupt
    crash = describe_crash(code)
    if crash:
        raise CacheError(f"ComfyUI's process {crash}")
    return code


def describe_crash(code: int) -> str:
    """What happened to a process with this exit code; empty if it did not crash."""
    if code < 0:
        return f"was ended by {_signal_name(-code)}{_CAUSES.get(-code, '')}"
    return f"crashed with the code {code:#x}" if code > 255 else ""  # of Windows


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _split(options: str) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError as error:  # an open quotation mark
        raise UsageError(f"--comfyui-args {options}: {error}") from None


def environment(options: Sequence[str]) -> dict[str, str]:
    """The variables that ComfyUI's main.py would set from its options for torch and the drivers."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--cuda-device")
    parser.add_argument("--default-device", type=int)
    parser.add_argument("--oneapi-device-selector")
    parser.add_argument("--deterministic", action="store_true")
    given, _ = parser.parse_known_args(options)
    found = {"TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL": "1"}
    first, devices = given.default_device, given.cuda_device
    if first is not None and devices != "all":
        order = [first, *(number for number in range(32) if number != first)]
        found |= dict.fromkeys(VISIBLE, ",".join(map(str, order)))
    if devices is not None and devices != "all":
        found |= dict.fromkeys((*VISIBLE, "ASCEND_RT_VISIBLE_DEVICES"), devices)
    if given.oneapi_device_selector is not None:
        found["ONEAPI_DEVICE_SELECTOR"] = given.oneapi_device_selector
    if given.deterministic:
        found["CUBLAS_WORKSPACE_CONFIG"] = os.environ.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return found


def find_python(folder: Path, given: str | None) -> Path:
    """The Python interpreter of a ComfyUI."""
    named = given or os.environ.get("COMFYUI_PYTHON")
    inside = "Scripts/python.exe" if os.name == "nt" else "bin/python"
    places = [folder / ".venv" / inside, folder / "venv" / inside, folder.parent / "python_embeded" / "python.exe"]
    found = Path(named).expanduser() if named else next((place for place in places if place.exists()), None)
    if found is None or not found.exists():
        raise UsageError(f"{found or folder}: ComfyUI's Python not found; give it with --comfyui-python")
    return found
