"""Training as the node does it: settings read, a model of the host taken, the LoRA put where the host looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..dataset_cache import realize
from ..lora_train import (
    Curves,
    Prompt,
    Run,
    TrainConfig,
    TrainError,
    TrainResult,
    WatchRun,
    check_run_name,
    load_config,
    read_curves,
    train_in_run,
    with_sample_images,
)
from .host import HostSettings, split_settings
from .host.model import make_denoiser


@dataclass(frozen=True)
class Pictures:
    """What sample pictures are made with. Without a VAE there are none."""

    vae: Any = None
    prompts: Sequence[Any] = ()
    negative: Any = None


@dataclass(frozen=True)
class Trained:
    """A finished (or stopped) training."""

    result: TrainResult
    run: Run
    curves: Curves


def read_config(values: Mapping[str, Any], options: Mapping[str, Any] | None) -> tuple[TrainConfig, HostSettings]:
    """The settings of a node, and over them those of the options socket."""
    host, engine = split_settings({**values, **(options or {})})
    return load_config(engine, "settings"), host


def train_lora(
    patcher: Any,
    dataset: Any,
    config: TrainConfig,
    host: HostSettings,
    pictures: Pictures,
    loras: Path,
    runs: Path,
    watch: WatchRun,
) -> Trained:
    """Train on an open dataset; the LoRA lies in `loras` under the run's name, also if the training is stopped."""
    denoiser = make_denoiser(patcher, config, host, pictures.negative)
    config = _with_free_name(config, loras, runs)
    decode = None
    if pictures.vae is not None:
        config, decode = with_sample_images(config), lambda latents: denoiser.decode(pictures.vae, latents)
    result, run = train_in_run(
        denoiser,
        dataset,
        config,
        runs,
        lambda run: loras / f"{run.name}.safetensors",
        watch,
        decode,
        _prompts(pictures, dataset),
    )
    return Trained(result, run, read_curves(run.metrics))


def describe_end(result: TrainResult, run: str, asked: str) -> str:
    """What to say of a training that ended, or was stopped, under the name that it got instead of the one asked for."""
    if not result.stopped:
        share = f"{result.data_wait:.1%} waiting for data"
        return f"{result.step:,} of {result.steps:,} steps, {share}: {result.lora.name}"
    name = f" and name = {run}" if run != asked else ""
    saved = f"Stopped at step {result.step:,} of {result.steps:,}; saved as {result.lora.name}."
    return f"{saved} Run again with mode = resume{name} to go on"


def _with_free_name(config: TrainConfig, loras: Path, runs: Path) -> TrainConfig:
    """A new run never replaces a LoRA that is there: it is called my_lora-2, and so on, as its folder is."""
    check_run_name(config.name)
    name, number = config.name, 1
    if config.mode == "resume" and not (runs / name).exists() and (loras / f"{name}.safetensors").exists():
        raise TrainError(f'mode = "resume": there is a LoRA {name}, but no run that it came from; choose another name')
    while config.mode == "new" and ((loras / f"{name}.safetensors").exists() or _used(runs / name)):
        number += 1
        name = f"{config.name}-{number}"
    return replace(config, name=name)


def _used(folder: Path) -> bool:
    return folder.exists() and any(folder.iterdir())


def _prompts(pictures: Pictures, dataset: Any) -> list[Prompt] | None:
    if not pictures.prompts:
        return None
    bucket = max(dataset.buckets().items(), key=lambda item: len(item[1]))[0]
    shape = tuple(bucket.shape)
    return [Prompt(f"prompt {n}", realize(c), shape) for n, c in enumerate(pictures.prompts, start=1)]
