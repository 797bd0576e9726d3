"""A whole training: a run is opened and trained in, and its LoRA put in its place, however the training ends."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from .config import TrainConfig
from .denoiser import Denoiser
from .loop import Hooks, Result, train
from .run import Run, open_run
from .samples import Decode, Prompt

# Who looks on is told the run that was opened, and is there until the run has ended.
Watch = Callable[[Run], AbstractContextManager[Hooks]]

SAMPLES_A_RUN = 8  # pictures over the run where a VAE is given and no interval


def train_in_run(
    denoiser: Denoiser,
    dataset: Any,
    config: TrainConfig,
    runs: Path,
    place: Callable[[Run], Path],
    watch: Watch,
    decode: Decode | None = None,
    prompts: Sequence[Prompt] | None = None,
) -> tuple[Result, Run]:
    """Train in the run that `config` names, in the folder `runs`; the LoRA is in its `place` also after an error."""
    with open_run(runs, config.name, config.mode) as run:
        out = place(run)
        with watch(run) as hooks, _kept(run, out):
            return train(denoiser, dataset, config, run, out, hooks, decode, prompts), run


def with_samples(config: TrainConfig) -> TrainConfig:
    """For whoever gives a VAE: pictures at an interval, also where none is set."""
    if config.sample_every:
        return config
    steps = config.steps if not config.epochs else SAMPLES_A_RUN * 200
    return replace(config, sample_every=max(steps // SAMPLES_A_RUN, 1))


@contextmanager
def _kept(run: Run, out: Path) -> Iterator[None]:
    """Whatever ends the training, what it has saved in its folder is put where its LoRA is looked for."""
    before = _state(run.lora)
    try:
        yield
    except BaseException:
        if _state(run.lora) not in (None, before):
            out.parent.mkdir(parents=True, exist_ok=True)
            part = out.with_suffix(".part")
            shutil.copyfile(run.lora, part)
            os.replace(part, out)
        raise


def _state(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
