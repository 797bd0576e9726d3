"""One training step: from batches to new weights, with EMA and loss read-back; the same for all models and adapters."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..dataset_cache import Batch, Dataset, is_out_of_memory
from ..errors import TrainError
from .adapters import Network, seeded_generator
from .data import BatchPlan, Loaded
from .denoiser import Denoiser
from .memory import Precision
from .objective import ObjectiveSettings, draw_noise, draw_times, evaluate, mean_loss, row_weights


class NonFiniteLoss(TrainError):
    """The loss is nan or infinite. Nothing computed after it may be saved."""


@contextmanager
def signals_held() -> Iterator[None]:
    """Inside the `with`, Ctrl-C and SIGTERM wait until it ends: weights must not be left between two steps."""
    held: list[tuple[Any, Any]] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # only there are handlers called and can be set
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(signal.getsignal(number)):
                before[number] = signal.signal(number, lambda *signaled: held.append(signaled))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number, frame in held:
            before[number](number, frame)


@dataclass(frozen=True)
class LossEntry:
    """A step whose loss may still be on the GPU, with the values that are reported for it."""

    step: int
    epoch: int
    rate: float
    loss: Tensor
    rows: int = 1
    arrived: torch.cuda.Event | None = None


class LossLedger:
    """Reads losses without stalling the GPU.

    On the CPU a loss is read at once. On a GPU it is copied asynchronously and read when the next one is added:
    reading it at once would make the GPU wait for Python in every step.
    """

    def __init__(self, device: torch.device) -> None:
        self._copies = device.type == "cuda"
        self._waiting: LossEntry | None = None

    def add(self, step: int, epoch: int, rate: float, loss: Tensor, rows: int = 1) -> list[tuple[LossEntry, float]]:
        """Add a loss; returns the losses that can be read now."""
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
        """The losses that have not been read yet."""
        entry, self._waiting = self._waiting, None
        return [] if entry is None else [_read(entry)]


class Ema:
    """The moving average of a module's trained parameters, in float32 on their device."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self._live = {name: value for name, value in module.named_parameters() if value.requires_grad}
        self._mean = {name: value.detach().float().clone() for name, value in self._live.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Add the weights after a step. The decay rises at first, so that the random start is forgotten."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, value in self._live.items():
            self._mean[name].lerp_(value.float(), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside the `with`, the module has the averaged weights; after it, its own again."""
        own = {name: value.detach().clone() for name, value in self._live.items()}
        try:
            self._write(self._mean)
            yield
        finally:
            self._write(own)

    def keep(self) -> None:
        """Replace the module's weights by the average."""
        self._write(self._mean)

    def tensors(self) -> dict[str, Tensor]:
        """The state as a flat dict for safetensors."""
        return {**self._mean, "~updates": torch.tensor(self.updates)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from a state of the same module; parameters that are new since then start at their own value."""
        self.updates = int(tensors["~updates"])
        for name, mean in self._mean.items():
            mean.copy_(tensors.get(name, mean))

    @torch.no_grad()
    def _write(self, values: Mapping[str, Tensor]) -> None:
        for name, value in self._live.items():
            value.copy_(values[name])


@dataclass(frozen=True)
class Weights:
    """The loss weights of samples and prior rows."""

    samples: np.ndarray | None  # [samples] float32; None: all are 1
    objective: ObjectiveSettings

    def of(self, plan: BatchPlan) -> Tensor | None:
        """[B] the weights of a batch's rows, or None if all are 1."""
        if self.samples is None and plan.main == len(plan.indices):
            return None
        own = torch.ones(len(plan.indices)) if self.samples is None else torch.from_numpy(self.samples[plan.indices])
        prior = torch.arange(len(plan.indices)) >= plan.main
        return row_weights(own, prior, self.objective)


@dataclass(frozen=True)
class Dropout:
    """Caption dropout: some rows train on the cached empty caption instead of their own."""

    share: float
    empty: Any  # the conditioning of the empty caption, read once and shared by all rows; never written to

    def apply(self, batch: Batch, random: torch.Generator) -> Batch:
        """A copy of the batch with some conditionings replaced."""
        dropped = torch.rand(len(batch.indices), generator=random) < self.share
        words = [self.empty if drop else own for drop, own in zip(dropped.tolist(), batch.conditionings)]
        return Batch(batch.indices, batch.latents, {**batch.fields, "conditioning": words}, lambda: batch.captions)


@dataclass
class KnownSizes:
    """The sizes of images that the model has taken; an error on another size names it."""

    dataset: Dataset
    shapes: set[tuple[int, ...]] = field(default_factory=set)

    @contextmanager
    def explained(self, sample: int, shape: Sequence[int]) -> Iterator[None]:
        """Around a model call with latents of this shape [B, …], `sample` among them."""
        known = tuple(shape[1:]) in self.shapes
        try:
            yield
        except TrainError:
            raise
        except Exception as error:
            if known or is_out_of_memory(error):
                raise
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            # If images of another size have worked, this size is the reason; the first batch can fail for any other.
            if self.shapes:
                found = f"the model cannot take images of this size ({reason});"
            else:
                found = f"the first batch failed ({reason}); if the model cannot take images of this size,"
            remedy = "encode with another resolution, or remove these samples"
            raise TrainError(f"{self._name(sample)}: {found} {remedy}") from error
        if not known:
            self.shapes.add(tuple(shape[1:]))

    def _name(self, sample: int) -> str:
        """The images of this sample's bucket."""
        width, height = map(int, self.dataset.column("crop")[sample][2:])
        if width > 0 and height > 0:
            return f"bucket {width}×{height}"
        return f"sample {sample} ({self.dataset.source(sample)})"


@dataclass
class Stepper:
    """Everything that a step uses. `backward` and `update` are separate so that the loss can be checked in between."""

    denoiser: Denoiser
    network: Network
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    precision: Precision
    objective: ObjectiveSettings
    weights: Weights
    sizes: KnownSizes
    seed: int
    accumulate: int = 1
    clip_norm: float = 0.0
    dropout: Dropout | None = None
    ema: Ema | None = None
    draws_masks: bool = False  # whether adapters have dropout, and need the number of the batch
    position: int = 0  # batches trained so far
    epoch: int = 0
    rows: int = 0  # of the last step, in all its batches
    _next: int = 0  # the position after `update`

    def backward(self, loader: Iterator[Loaded]) -> Tensor:
        """Compute the gradients of the next batches; returns the loss to report, still on the device.

        It is the mean over the rows without the weights of samples and prior rows, as the validation loss is.
        """
        parts, rows, weighted = [], [], False
        self.rows = 0
        for loaded in islice(loader, self.accumulate):
            plan, losses = loaded.plan, self.losses(loaded)
            weights = self.weights.of(plan)
            loss = mean_loss(losses, weights)
            if plan.share != 1:
                loss = loss * plan.share
            self.scaler.scale(loss).backward()
            parts.append(loss.detach())
            rows.append((losses.detach(), plan.main))
            weighted = weighted or weights is not None
            self.rows += len(plan.indices)
            self.epoch, self._next = plan.epoch, plan.number + 1
        total = parts[0] if len(parts) == 1 else torch.stack(parts).sum()
        # A nan in a prior row must be reported too, although its value does not count.
        return plain_mean(rows) + 0 * total if weighted else total

    def check_layers(self) -> str:
        """After the first backward pass: refuse to train if a layer is never called, or if most get no gradient.

        Returns a note on layers without a gradient. A few are normal: some models do not use the text output of their
        last block.
        """
        check_calls(self.network, "in training")
        idle, trained = self.network.without_gradient(), len(self.network.trained())
        if 2 * len(idle) > trained:
            raise TrainError(
                f"{len(idle)} of {trained} adapted layers get no gradient ({_first(idle)}): a patch on the model "
                "cannot be trained through; remove the patch, or choose other targets"
            )
        if not idle:
            return ""
        return f"{len(idle)} of {trained} adapted layers get no gradient and stay as they are: {', '.join(idle)}"

    def update(self) -> None:
        """Clip the gradients and update the weights."""
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
        """Noise and timesteps for a batch; called by the prefetch thread."""
        assert batch.latents is not None
        times = self._random(plan, "times")
        return self._noise(plan, batch.latents), draw_times(
            len(plan.indices), self.denoiser.schedule, self.objective, times
        )

    def losses(self, loaded: Loaded) -> Tensor:
        """[B] the losses of one batch, from one model call. Everything random in it follows from the batch's number."""
        plan, batch = loaded.plan, loaded.batch
        noise, times = loaded.drawn or self.draw(plan, batch)
        if self.dropout is not None:
            batch = self.dropout.apply(batch, self._random(plan, "captions"))
        prepared = self.denoiser.prepare(batch)
        if noise.shape != prepared.latents.shape:  # some models change the shape of latents
            noise = self._noise(plan, prepared.latents)
        if self.draws_masks:
            self.network.begin(plan.number)
        with self.precision.autocast(), self.sizes.explained(int(plan.indices[0]), noise.shape):
            return evaluate(self.denoiser, prepared, noise, times, self.objective, batch.masks)

    def _noise(self, plan: BatchPlan, like: Tensor) -> Tensor:
        return draw_noise(like, self.objective, self._random(plan, "noise"))

    def _random(self, plan: BatchPlan, purpose: str) -> torch.Generator:
        return seeded_generator(f"{self.seed}:{plan.number}:{purpose}")


def share_windows(plans: Iterator[BatchPlan], accumulate: int) -> Iterator[BatchPlan]:
    """The plans with their share of the step's rows, so that accumulated batches are weighted by their size."""
    if accumulate == 1:
        yield from plans
        return
    while window := list(islice(plans, accumulate)):
        rows = sum(len(plan.indices) for plan in window)
        yield from (replace(plan, share=len(plan.indices) / rows) for plan in window)


def plain_mean(rows: list[tuple[Tensor, int]]) -> Tensor:
    """The mean of (losses, number of rows before the prior ones) over several batches, without their prior rows."""
    own = [losses[:main] for losses, main in rows if main]
    return torch.cat(own or [losses for losses, _ in rows]).mean()


def check_calls(network: Network, place: str) -> None:
    """Refuse layers that were not called since `network.forget_calls()`: their adapters have no effect there."""
    skipped = network.uncalled()
    if skipped:
        raise TrainError(
            f"{len(skipped)} of {len(network.trained())} adapted layers are never called {place} ({_first(skipped)}): "
            "the model skips them, or uses their weights in another way; leave them out of the targets, for example "
            f'with "!{skipped[0]}", or set their group_rates to 0'
        )


def _first(names: Sequence[str]) -> str:
    return f"{', '.join(names[:8])}{', …' if len(names) > 8 else ''}"


def _read(entry: LossEntry) -> tuple[LossEntry, float]:
    if entry.arrived is not None:
        entry.arrived.synchronize()
    value = float(entry.loss)
    if not math.isfinite(value):
        raise NonFiniteLoss(
            f"step {entry.step}: the loss is {value}; lower learning_rate, or choose precision bf16 or fp32"
        )
    return entry, value
