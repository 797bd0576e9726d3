"""ComfyUI as the place where a command runs: with its Python and its models, and without a server."""

import argparse
import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..dataset_cache import CacheError

INSIDE = False  # whether this process is the host's already; nodes/host/headless.py says so
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
HEADLESS = Path(__file__).resolve().parent.parent / "nodes" / "host" / "headless.py"


def add_host_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("with the models of ComfyUI")
    group.add_argument(
        "--comfyui", metavar="FOLDER", help="ComfyUI's folder: run there, with its Python and its models"
    )
    group.add_argument(
        "--comfyui-python", metavar="FILE", help="its Python (default: COMFYUI_PYTHON, else its .venv or venv)"
    )
    group.add_argument(
        "--comfyui-args", default="", metavar="TEXT", help='its own options, such as "--cpu --base-directory D"'
    )
    return group


def hand_over(args: argparse.Namespace) -> int | None:
    """Run this very command in the host and return its exit code; None if it is to go on here."""
    if not args.comfyui or INSIDE:
        return None
    folder = Path(args.comfyui).expanduser().resolve()
    if not (folder / "main.py").is_file() or not (folder / "comfy").is_dir():
        raise CacheError(f"--comfyui {args.comfyui}: holds no ComfyUI; name the folder with its main.py")
    options = shlex.split(args.comfyui_args)
    command = [find_python(folder, args.comfyui_python), HEADLESS, folder, json.dumps(options), *args.arguments]
    process = subprocess.Popen(command, env={**os.environ, **environment(options)})
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # the terminal told the other process too, which ends in its own time


def environment(options: Sequence[str]) -> dict[str, str]:
    """The variables by which ComfyUI's main.py hands its options to torch and the drivers."""
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
    """The interpreter that runs a ComfyUI."""
    named = given or os.environ.get("COMFYUI_PYTHON")
    inside = "Scripts/python.exe" if os.name == "nt" else "bin/python"
    places = [folder / ".venv" / inside, folder / "venv" / inside, folder.parent / "python_embeded" / "python.exe"]
    found = Path(named).expanduser() if named else next((place for place in places if place.exists()), None)
    if found is None or not found.exists():
        raise CacheError(f"{found or folder}: no Python of ComfyUI is there; name it with --comfyui-python")
    return found
