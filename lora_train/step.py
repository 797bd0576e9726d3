"""The training step: one function from batches to changed weights, the same for every model, adapter and precision."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..dataset_cache import Batch
from .adapters import Network, seeded_generator
from .data import BatchPlan, Loaded
from .denoiser import Denoiser
from .errors import TrainError
from .memory import Precision
from .objective import ObjectiveSettings, draw_noise, draw_times, evaluate, mean_loss, row_weights


@dataclass(frozen=True)
class Weights:
    """The weight of a sample in the loss, and of prior rows."""

    samples: np.ndarray | None  # [samples] float32; None: all of them are 1
    objective: ObjectiveSettings

    def of(self, plan: BatchPlan) -> Tensor | None:
        """[B] the weights of a batch's rows, or None where all are 1."""
        if self.samples is None and plan.main == len(plan.indices):
            return None
        own = torch.ones(len(plan.indices)) if self.samples is None else torch.from_numpy(self.samples[plan.indices])
        prior = torch.arange(len(plan.indices)) >= plan.main
        return row_weights(own, prior, self.objective)


@dataclass(frozen=True)
class Dropout:
    """Caption dropout: rows that train on the cached empty caption instead of their own."""

    share: float
    empty: Any  # its conditioning, realized once and shared by every row; nothing writes to it

    def apply(self, batch: Batch, random: torch.Generator) -> Batch:
        """The batch with some conditionings exchanged; the given one stays as it is."""
        dropped = torch.rand(len(batch.indices), generator=random) < self.share
        words = [self.empty if drop else own for drop, own in zip(dropped.tolist(), batch.conditionings)]
        return Batch(batch.indices, batch.latents, {**batch.fields, "conditioning": words}, lambda: batch.captions)


@dataclass
class Stepper:
    """All parts that a step touches. `backward` and `update` are apart so that a loss can be looked at between them."""

    denoiser: Denoiser
    network: Network
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    precision: Precision
    objective: ObjectiveSettings
    weights: Weights
    seed: int
    accumulate: int = 1
    clip_norm: float = 0.0
    dropout: Dropout | None = None
    ema: Ema | None = None
    draws_masks: bool = False  # whether adapters drop inputs, and so need to know the batch
    position: int = 0  # batches consumed so far
    epoch: int = 0
    rows: int = 0  # of the last step, over all its batches
    _next: int = 0  # the position once the batches that were read have changed the weights

    def backward(self, loader: Iterator[Loaded]) -> Tensor:
        """Gradients of the next batches; returns their mean loss, still on the device."""
        parts = []
        self.rows = 0
        for loaded in islice(loader, self.accumulate):
            loss = self.loss(loaded)
            if loaded.plan.share != 1:
                loss = loss * loaded.plan.share
            self.scaler.scale(loss).backward()
            parts.append(loss.detach())
            self.rows += len(loaded.plan.indices)
            self.epoch, self._next = loaded.plan.epoch, loaded.plan.number + 1
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum()

    def update(self) -> None:
        """Change the weights by the gradients."""
        if self.clip_norm:
            self.scaler.unscale_(self.optimizer)
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update()
        self.position = self._next

    def draw(self, plan: BatchPlan, batch: Batch) -> tuple[Tensor, Tensor]:
        """Noise and times for a batch, as the loader draws them ahead."""
        times = self._random(plan, "times")
        return self._noise(plan, batch.latents), draw_times(
            len(plan.indices), self.denoiser.schedule, self.objective, times
        )

    def loss(self, loaded: Loaded) -> Tensor:
        """The loss of one batch, from one model call. All that is random in it follows from the batch's number."""
        plan, batch = loaded.plan, loaded.batch
        noise, times = loaded.drawn or self.draw(plan, batch)
        if self.dropout is not None:
            batch = self.dropout.apply(batch, self._random(plan, "captions"))
        prepared = self.denoiser.prepare(batch)
        if noise.shape != prepared.latents.shape:  # some models take latents in another shape
            noise = self._noise(plan, prepared.latents)
        if self.draws_masks:
            self.network.begin(plan.number)
        with self.precision.autocast():
            losses = evaluate(self.denoiser, prepared, noise, times, self.objective, batch.masks)
        return mean_loss(losses, self.weights.of(plan))

    def _noise(self, plan: BatchPlan, like: Tensor) -> Tensor:
        return draw_noise(like, self.objective, self._random(plan, "noise"))

    def _random(self, plan: BatchPlan, purpose: str) -> torch.Generator:
        return seeded_generator(f"{self.seed}:{plan.number}:{purpose}")


def share_windows(plans: Iterator[BatchPlan], accumulate: int) -> Iterator[BatchPlan]:
    """The plans with their share of the step's rows, so that short batches count by their rows when added up."""
    if accumulate == 1:
        yield from plans
        return
    while window := list(islice(plans, accumulate)):
        rows = sum(len(plan.indices) for plan in window)
        yield from (replace(plan, share=len(plan.indices) / rows) for plan in window)


class Ema:
    """The average of a module's trained parameters, in float32 on their device."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self._live = {name: value for name, value in module.named_parameters() if value.requires_grad}
        self._mean = {name: value.detach().float().clone() for name, value in self._live.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step. The decay warms up: early averages forget the random start."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, value in self._live.items():
            self._mean[name].lerp_(value.float(), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The module holds the average for the time of the `with`, and its own weights again after it."""
        own = {name: value.detach().clone() for name, value in self._live.items()}
        try:
            self._write(self._mean)
            yield
        finally:
            self._write(own)

    def keep(self) -> None:
        """The average becomes the module's weights, for good."""
        self._write(self._mean)

    def tensors(self) -> dict[str, Tensor]:
        """The state, as a flat dict that safetensors can hold."""
        return {**self._mean, "~updates": torch.tensor(self.updates)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from a state of the same module."""
        self.updates = int(tensors["~updates"])
        for name, mean in self._mean.items():
            mean.copy_(tensors[name])

    @torch.no_grad()
    def _write(self, values: Mapping[str, Tensor]) -> None:
        for name, value in self._live.items():
            value.copy_(values[name])


class NonFiniteLoss(TrainError):
    """A loss of nan or infinity. Whatever was computed after it must not be saved."""


@dataclass(frozen=True)
class LossEntry:
    """A step whose loss is on its way, with what the report says of it."""

    step: int
    epoch: int
    rate: float
    loss: Tensor
    rows: int = 1
    arrived: Any = None


class LossLedger:
    """On the CPU a loss is read at once. On a GPU it is copied beside the work and read when the next one is added:
    reading it at once would make the device wait for Python in every step."""

    def __init__(self, device: torch.device) -> None:
        self._copies = device.type == "cuda"
        self._waiting: LossEntry | None = None

    def add(self, step: int, epoch: int, rate: float, loss: Tensor, rows: int = 1) -> list[tuple[LossEntry, float]]:
        """Take a loss in; returns those that can be read now."""
        if not self._copies:
            return [_read(LossEntry(step, epoch, rate, loss, rows))]
        before = self.drain()
        host = torch.empty((), dtype=loss.dtype, pin_memory=True)
        host.copy_(loss, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self._waiting = LossEntry(step, epoch, rate, host, rows, arrived)
        return before

    def drain(self) -> list[tuple[LossEntry, float]]:
        """What is still on its way."""
        entry, self._waiting = self._waiting, None
        return [] if entry is None else [_read(entry)]


def _read(entry: LossEntry) -> tuple[LossEntry, float]:
    if entry.arrived is not None:
        entry.arrived.synchronize()
    value = float(entry.loss)
    if not math.isfinite(value):
        raise NonFiniteLoss(
            f"step {entry.step}: the loss is {value}; lower learning_rate, or choose precision bf16 or fp32"
        )
    return entry, value
