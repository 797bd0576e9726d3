"""Runs in ComfyUI's Python: memory forecasts beside the peaks of real steps. Writes two tables in docs/memory.md.

For a small model of each family, the bytes of all tensors at the peak of a real step; and for some of them with larger
samples, what their whole process takes, as the system tells it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "memory.md"
LARGER = {"SDXL": (4, 96, 96), "Flux": (16, 128, 128), "Wan": (16, 1, 128, 128)}  # latents
SETTINGS: dict[str, Any] = {"steps": 2, "rank": 2, "batch_size": 4}
# glibc gives back at once what is freed.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}


def main(host: str, name: str = "") -> None:
    inside = _load("inside", ROOT / "tests" / "host" / "inside.py")
    with tempfile.TemporaryDirectory() as folder:
        inside.enter_host(host, folder)
        inside.register_package()
        import torch

        torch.set_num_threads(1)
        with torch.inference_mode():
            if name:
                print("\n" + json.dumps(_process(name, Path(folder))))
                return
            lines = list(_families(Path(folder)))
        if sys.platform == "linux":
            lines += ["", *_processes(host)]
        head, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- errors -->\n")
        tail = rest.partition("<!-- end of errors -->")[2]
        shown = "\n".join(lines)
        PAGE.write_text(f"{head}<!-- errors -->\n{shown}\n<!-- end of errors -->{tail}", encoding="utf-8")


def _families(folder: Path) -> Iterator[str]:
    from streamcache.bench.autocast import gpu_rules
    from streamcache.tests.host.small_families import SMALL

    yield "| small model | fp32: forecast | measured | error | bf16: forecast | measured | error |"
    yield "|---|---|---|---|---|---|---|"
    with gpu_rules("CPU"):
        for name in SMALL:
            cells = [_cells(*_pair(name, folder / kind, kind)) for kind in ("fp32", "bf16")]
            line = f"| {name} | {' | '.join(cells)} |"
            print(line, flush=True)
            yield line


def _pair(name: str, folder: Path, precision: str) -> tuple[int, int]:
    """The peaks of the forecast and of real steps."""
    from streamcache.lora_train import TrainConfig, forecast_training
    from streamcache.tests.host.memory_claims import dataset_of, denoiser_of
    from streamcache.tests.lora_train.forecast.measured import measured_peak

    dataset, denoiser = dataset_of(name, folder), denoiser_of(name, precision=precision)
    config = TrainConfig(**SETTINGS, precision=precision)
    found = forecast_training(denoiser, dataset, config).peak, measured_peak(denoiser, dataset, config)
    dataset.close()
    return found


def _cells(forecast: int, measured: int) -> str:
    return f"{forecast / 1e6:.2f} MB | {measured / 1e6:.2f} MB | {100 * (forecast / measured - 1):+.1f} %"


def _processes(host: str) -> Iterator[str]:
    yield "| larger samples, fp32 | forecast without weights | growth of the process | error |"
    yield "|---|---|---|---|"
    for name in LARGER:
        command = [sys.executable, __file__, host, name]
        done = subprocess.run(command, env={**os.environ, **ALLOCATOR}, stdout=subprocess.PIPE, check=True)
        line = f"| {name} | {_cells(*json.loads(done.stdout.splitlines()[-1]))} |"
        print(line, flush=True)
        yield line


def _process(name: str, folder: Path) -> tuple[int, int]:
    """The forecast without the weights, and by how much the process grows for two steps once its model is there."""
    from streamcache.lora_train import TrainConfig, forecast_training
    from streamcache.tests.host.memory_claims import dataset_of, denoiser_of
    from streamcache.tests.host.small_families import SMALL
    from streamcache.tests.lora_train.forecast.measured import measured_peak

    config, denoiser = TrainConfig(**SETTINGS, precision="fp32"), denoiser_of(name, precision="fp32")
    measured_peak(denoiser, dataset_of(name, folder / "small"), config)  # libraries take memory at their first use
    SMALL[name] = replace(SMALL[name], latent=LARGER[name])
    dataset = dataset_of(name, folder / "larger")
    forecast = forecast_training(denoiser, dataset, config)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again at what the process has now
    before = _peak()
    measured_peak(denoiser, dataset, config)
    return forecast.peak - forecast.weights, _peak() - before


def _peak() -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def _load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(*sys.argv[1:])
