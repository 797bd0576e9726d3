"""Scenario: ComfyUI's models train on a device that is not the CPU, without waiting for it within a step."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from streamcache.bench.autocast import gpu_rules
from streamcache.lora_train import TrainConfig, forecast_training, open_run, train
from streamcache.lora_train.loop import _Loop

from ..lora_train.forecast.measured import measured_peak
from ..support.accelerator import ACCELERATOR, NAME, start
from .claims import claim, hold
from .family_claims import close
from .memory_claims import dataset_of
from .small_families import SMALL, make_patcher

THERE = f"{NAME}:0"
SETTINGS: dict[str, Any] = {
    "steps": 3, "batch_size": 2, "rank": 2, "learning_rate": 1e-2, "precision": "fp32", "targets": "all",
    "ema_decay": 0.9, "accumulate": 2, "save_every": 0,
}  # fmt: skip
# What ComfyUI's models send to the device for each call themselves.
HOSTS_OWN = ("sinusoidal_embedding_1d",)


def run(base: Path) -> dict:
    import comfy.model_management as management

    start()
    management.get_free_memory = _free(management.get_free_memory)
    with steps_watched():
        return hold("accelerator_claims", globals(), base / "accelerator")


def _free(own: Any) -> Any:
    """As a driver answers; ComfyUI asks CUDA for every device that it does not know."""

    def free(dev: Any = None, torch_free_too: bool = False) -> Any:
        if dev is None or torch.device(dev).type != NAME:
            return own(dev, torch_free_too)
        return (10**10, 10**10) if torch_free_too else 10**10

    return free


@contextmanager
def steps_watched() -> Iterator[None]:
    """Write down only the waits within a step."""
    own, note, inside = _Loop._step, ACCELERATOR.note, [False]

    def step(loop: _Loop, loader: Any) -> None:
        inside[0] = True
        try:
            own(loop, loader)
        finally:
            inside[0] = False

    _Loop._step = step
    ACCELERATOR.note = lambda what: note(what) if inside[0] else None
    try:
        yield
    finally:
        _Loop._step, ACCELERATOR.note = own, note


def trained(name: str, folder: Path, device: str, offload: bool = False, **settings: Any) -> dict[str, Any]:
    """The LoRA of a short training on a device."""
    from streamcache.nodes.host.model.denoiser import HostDenoiser

    ACCELERATOR.waits.clear()
    # ComfyUI forgets a model when it is collected, and must not do so while it goes through its list of models.
    gc.collect()
    patcher = make_patcher(name)
    patcher.load_device = torch.device(device)
    dataset = dataset_of(name, folder / device[:3])
    with open_run(folder / "runs", f"{name} {device[:3]}") as run:
        denoiser = HostDenoiser(patcher, "fp32", offload, offload_share=0.5 * offload)
        result = train(denoiser, dataset, TrainConfig(**{**SETTINGS, **settings}), run)
    dataset.close()
    return load_file(result.lora)


def same_on_both(name: str, folder: Path, **settings: Any) -> None:
    there = trained(name, folder, THERE, **settings)
    own = [wait for wait in ACCELERATOR.waits if not any(name in wait.place for name in HOSTS_OWN)]
    waits = {f"{wait.what} in {wait.thread}: {wait.place}" for wait in own}
    assert not waits, "\n".join([name, *sorted(waits)])
    here = trained(name, folder, "cpu", **settings)
    alike(there, here)


def alike(there: dict[str, torch.Tensor], here: dict[str, torch.Tensor]) -> None:
    """Adam takes steps of one size, also where a gradient is little more than rounding."""
    for key, value in here.items():
        close(there[key], value, rtol=1e-3, atol=3e-4, place=key)


@claim
def every_family_trains_as_on_the_cpu_and_no_step_waits(folder: Path) -> None:
    for name in SMALL:
        if name != "LTXV":  # it makes ranges on the device, which the pretended one cannot
            same_on_both(name, folder / "plain")


@claim
def checkpointed_blocks_train_as_on_the_cpu_and_no_step_waits(folder: Path) -> None:
    for name in ("SDXL", "Flux"):
        same_on_both(name, folder / "checkpointed", checkpointing=True)


@claim
def offloaded_weights_train_as_on_the_cpu(folder: Path) -> None:
    there = trained("Flux", folder / "offloaded", THERE, offload=True)
    here = trained("Flux", folder / "offloaded", "cpu")
    alike(there, here)


@claim
def the_forecast_for_an_accelerator_counts_what_its_autocast_keeps_in_fp32(folder: Path) -> None:
    from streamcache.nodes.host.model.denoiser import HostDenoiser

    def denoiser_on(device: str) -> Any:
        patcher = make_patcher(name)
        patcher.load_device = torch.device(device)
        return HostDenoiser(patcher, "bf16")

    config = TrainConfig(steps=2, rank=2, batch_size=4, precision="bf16")
    for name in ("SDXL", "Flux", "Wan"):
        dataset = dataset_of(name, folder / "forecast")
        lower = forecast_training(denoiser_on(THERE), dataset, config)
        with gpu_rules("PrivateUse1"):
            forecast = forecast_training(denoiser_on(THERE), dataset, config)
        with gpu_rules("CPU"):  # real steps
            measured = measured_peak(denoiser_on("cpu"), dataset, config)
        assert abs(forecast.peak / measured - 1) <= 0.05, (name, forecast.peak, measured)
        assert forecast.activations > 1.15 * lower.activations, (name, forecast, lower)
        dataset.close()
