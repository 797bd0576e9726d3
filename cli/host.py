"""ComfyUI as the place where a command runs: with its Python and its models, and without a server."""

import argparse
import json
import os
import shlex
import subprocess
from pathlib import Path

from ..dataset_cache.errors import CacheError

INSIDE = False  # whether this process is the host's already; nodes/host/headless.py says so
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
    options = json.dumps(shlex.split(args.comfyui_args))
    process = subprocess.Popen([find_python(folder, args.comfyui_python), HEADLESS, folder, options, *args.arguments])
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # the terminal told the other process too, which ends in its own time


def find_python(folder: Path, given: str | None) -> Path:
    """The interpreter that runs a ComfyUI."""
    named = given or os.environ.get("COMFYUI_PYTHON")
    inside = "Scripts/python.exe" if os.name == "nt" else "bin/python"
    places = [folder / ".venv" / inside, folder / "venv" / inside, folder.parent / "python_embeded" / "python.exe"]
    found = Path(named).expanduser() if named else next((place for place in places if place.exists()), None)
    if found is None or not found.exists():
        raise CacheError(f"{found or folder}: no Python of ComfyUI is there; name it with --comfyui-python")
    return found
