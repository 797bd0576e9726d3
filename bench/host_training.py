"""Training in ComfyUI, side by side with its own trainer: time per step, and memory before the first step."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from .. import dev
from .rounds import Settings
from .table import Figure

GROUP = "Training in ComfyUI (core = TrainLoraNode)"
INSIDE = Path(__file__).resolve().parent / "host_steps.py"
FEW, MANY = 32, 256  # samples
MEGABYTE = 1 << 20


def measure_host_training(folder: Path, settings: Settings) -> list[Figure]:
    """No figures if ComfyUI is not installed."""
    host = dev.find_host()
    if host is None:
        print(f"Skipped: ComfyUI {dev.HOW_TO_GET_A_HOST}", file=sys.stderr)
        return []
    from ..tests.host.tiny_models import write_models

    write_models(folder / "models")
    figures = [_speed(host, folder, family, batch, settings) for family in ("flow", "eps") for batch in (1, 4)]
    return figures + _memory(host, folder)


def _speed(host: dev.Host, folder: Path, family: str, batch: int, settings: Settings) -> Figure:
    seconds = _run(host, folder, "speed", family, batch, settings.host_rounds)
    ratio = statistics.median(core / ours for core, ours in zip(seconds["core"], seconds["ours"], strict=True))
    note = ", ".join(f"{name} {statistics.median(values) * 1e3:.0f} ms" for name, values in seconds.items())
    target = 1.0 if batch == 1 else 2.5
    return Figure(GROUP, f"core / ours, {family}, batch {batch}", ratio, "×", target, more_is_better=True, note=note)


def _memory(host: dev.Host, folder: Path) -> list[Figure]:
    grown = {}
    for who in ("ours", "core"):
        few, many = (_run(host, folder, "memory", who, count)["bytes"] for count in (FEW, MANY))
        grown[who] = (many - few) / MEGABYTE
    name = f"memory before step 1, {MANY} samples - {FEW} samples"
    note = f"core {grown['core']:.0f} MB"
    return [Figure(GROUP, name, grown["ours"], "MB", 5.0, note=note)]


def _run(host: dev.Host, base: Path, job: str, *arguments: object) -> dict:
    command = [host.python, INSIDE, job, host.folder, base, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    done = subprocess.run(command, cwd=base, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{job} {arguments}: exit code {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.strip().rpartition("\n")[2])
