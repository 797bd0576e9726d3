"""One training step: from batches to new weights, with EMA and loss read-back; the same for all models and adapters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..dataset_cache import Batch
from ..errors import TrainError
from .adapters import Network, Part, draw_numbers, seeded_generator, targets_without
from .compute import Ema, upload
from .data import BatchPlan, KnownSizes, Loaded, split_rows
from .denoiser import Denoiser, PreparedBatch
from .memory import Precision
from .objective import (
    ObjectiveSettings,
    draw_noise,
    draw_perturbation,
    draw_times,
    evaluate,
    mean_loss,
    noisy_input,
    row_weights,
)
from .other_captions import Dropout, Preservation, with_conditionings
from .ranks import ALONE, Ranks, RowGradients, add_gradients
from .run import signals_held

# A batch, the losses of its rows, and 0, or nan if its preservation loss is.
Trained = tuple[BatchPlan, Tensor, Tensor]


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
class StepInputs:
    """A batch as the model takes it, with everything random."""

    plan: BatchPlan
    batch: Batch
    prepared: PreparedBatch
    noise: Tensor
    times: Tensor
    perturbation: Tensor | None = None


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
    preservation: Preservation | None = None
    empty: Any = None  # the conditioning of the empty caption, for guided targets
    training_adapter: Network | None = None  # of the base; attached in steps, not in sample images
    max_norm: float = 0.0  # of each adapter's change of weight; 0: any
    ema: Ema | None = None
    draws_masks: bool = False  # whether adapters have dropout, and need the number of the batch
    ranks: Ranks = ALONE
    deterministic: bool = False  # row by row, summed in the order of rows
    position: int = 0  # batches trained so far
    epoch: int = 0
    rows: int = 0  # of the last step, in all its batches
    called: bool = False  # whether this rank has called the model in the last step
    _next: int = 0  # the position after `update`
    _last: Tensor = field(default_factory=lambda: torch.zeros(0))  # the losses of the last step's rows
    _owners: list[int] = field(default_factory=list)  # the ranks that these are of

    def backward(self, loader: Iterator[Loaded]) -> Tensor:
        """Compute the gradients of the next batches; returns the loss to report, still on the device.

        It is the mean over the rows without the weights of samples and prior rows, as the validation loss is.
        """
        kept = RowGradients(self.ranks, self._parameters()) if self.deterministic else None
        trained: list[Trained] = []
        for loaded in islice(loader, self.accumulate):
            pieces = [loaded] if kept is None else split_rows(loaded)
            trained.append(self._sum(loaded.plan, [self._learn(piece, kept) for piece in pieces if piece.plan.indices]))
            self.epoch, self._next = loaded.plan.epoch, loaded.plan.number + 1
        self.called = any(plan.indices for plan, _, _ in trained)
        return self._report(self._exchange(trained, kept))

    def _exchange(self, trained: list[Trained], kept: RowGradients | None) -> list[Trained]:
        """Give the parameters the gradients of all rows; returns the losses of all rows."""
        if self.ranks.size == 1 and kept is None:
            return trained
        with signals_held():
            self.ranks.any(False)  # a rank that has failed until here says so
            if kept is None:
                add_gradients(self.ranks, self._parameters())
            else:
                kept.write([owner for plan, _, _ in trained for owner in self.ranks.owners(len(plan.batch.indices))])
            return self._join(trained)

    def _sum(self, plan: BatchPlan, found: list[tuple[Tensor, Tensor]]) -> Trained:
        if len(found) == 1:
            return plan, *found[0]
        zero = torch.zeros((), device=self.denoiser.device)
        if not found:
            self.scaler.scale(zero)  # which makes its scale, that this rank needs too
            return plan, zero.new_zeros(0), zero
        return plan, torch.cat([losses for losses, _ in found]), torch.stack([lost for _, lost in found]).sum()

    def _learn(self, loaded: Loaded, kept: RowGradients | None) -> tuple[Tensor, Tensor]:
        """Add the gradients of these rows; returns the loss of each, and 0, or nan if preservation has failed."""
        plan, inputs = loaded.plan, self._prepare(loaded)
        losses = self._losses(inputs)
        loss = mean_loss(losses, self.weights.of(plan))
        if plan.share != 1:
            loss = loss * plan.share
        self.scaler.scale(loss).backward()
        lost = losses.new_zeros(()) if self.preservation is None else 0 * self._preserve(self.preservation, inputs)
        if kept is not None:
            kept.take()
        return losses.detach(), lost

    def _join(self, trained: list[Trained]) -> list[Trained]:
        """The batches with the losses of all rows, those of other ranks too."""
        if self.ranks.size == 1:
            return trained
        rows = [losses.new_zeros(len(plan.batch.indices)) for plan, losses, _ in trained]
        for row, (plan, losses, lost) in zip(rows, trained):
            row[plan.first : plan.first + len(losses)] = losses + lost
        self._last = self.ranks.add(torch.cat(rows))
        self._owners = [owner for row in rows for owner in self.ranks.owners(len(row))]
        joined = self._last.split([len(row) for row in rows])
        return [(plan.batch, losses, losses.new_zeros(())) for (plan, _, _), losses in zip(trained, joined)]

    def _report(self, trained: list[Trained]) -> Tensor:
        parts, rows, weighted = [], [], False
        for plan, losses, lost in trained:
            weights = self.weights.of(plan)
            loss = mean_loss(losses, weights)
            parts.append(loss * plan.share if plan.share != 1 else loss)
            if self.preservation is not None:
                parts.append(lost)
            rows.append((losses, plan.main))
            weighted = weighted or weights is not None
        self.rows = sum(len(plan.indices) for plan, _, _ in trained)
        total = parts[0] if len(parts) == 1 else torch.stack(parts).sum()
        # A nan in a prior row must be reported too, although its value does not count.
        return plain_mean(rows) + 0 * total if weighted else total

    def blame(self) -> str:
        """The ranks whose rows had losses that are nan or infinite, for a message."""
        bad = (~self._last.isfinite()).tolist()
        found = sorted({owner for owner, is_bad in zip(self._owners, bad) if is_bad})
        return f" (rows of rank {', '.join(map(str, found))})" if found else ""

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

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

    def clip(self) -> Tensor:
        """Clip the gradients; returns the norm that they had, still on the device."""
        self.scaler.unscale_(self.optimizer)
        return clip_gradients(self._parameters(), self.clip_norm or math.inf)

    def update(self) -> None:
        """Update the weights, after `clip`."""
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.max_norm:
            self.network.limit_norms(self.max_norm)
        if self.ema is not None:
            self.ema.update()
        self.position = self._next

    def draw(self, plan: BatchPlan, batch: Batch) -> tuple[Tensor, ...]:
        """Noise and timesteps for a batch, and noise for a perturbed input; called by the prefetch thread."""
        assert batch.latents is not None
        whole, random = plan.batch.indices, self._random(plan, "times")
        pixels = self.sizes.pixels(whole) if self.objective.resolution_shift != "off" else ()
        times = plan.take(draw_times(len(whole), self.denoiser.schedule, self.objective, random, pixels))
        return self._noise(plan, batch.latents), times, *self._perturbation(plan, batch.latents)

    def losses(self, loaded: Loaded) -> Tensor:
        """[B] the losses of one batch, from one model call. Everything random in it follows from the batch's number."""
        return self._losses(self._prepare(loaded))

    def _prepare(self, loaded: Loaded) -> StepInputs:
        plan, batch = loaded.plan, loaded.batch
        noise, times, *perturbation = loaded.drawn or self.draw(plan, batch)
        if self.dropout is not None:
            dropped = self.dropout.draw(len(plan.batch.indices), self._random(plan, "captions"))
            batch = self.dropout.apply(batch, plan.take(dropped))
        prepared = self.denoiser.prepare(batch)
        if noise.shape != prepared.latents.shape:  # some models change the shape of latents
            noise = self._noise(plan, prepared.latents)
            perturbation = self._perturbation(plan, prepared.latents)
        return StepInputs(plan, batch, prepared, noise, times, *perturbation)

    def _losses(self, inputs: StepInputs) -> Tensor:
        plan, batch, prepared = inputs.plan, inputs.batch, inputs.prepared
        if self.draws_masks:
            part = Part(plan.first, len(plan.indices), len(plan.whole.indices)) if plan.whole is not None else None
            self.network.begin(plan.number, self._mask_numbers(plan), part)
        bare = None
        if self.empty is not None:
            bare = self.denoiser.prepare(with_conditionings(batch, [self.empty] * len(batch.indices))).conditioning
        drawn = inputs.noise, inputs.times
        with self.precision.autocast(), self.sizes.explained(int(plan.indices[0]), inputs.noise.shape):
            return evaluate(self.denoiser, prepared, *drawn, self.objective, batch.masks, inputs.perturbation, bare)

    def _preserve(self, preservation: Preservation, inputs: StepInputs) -> Tensor:
        """Add the gradients of the preservation loss; returns it. They come after the others: one graph at a time."""
        plan, prepared = inputs.plan, inputs.prepared
        device = prepared.latents.device
        if not preservation.is_due(f"{self.seed}:{plan.number}:preservation"):
            return torch.zeros((), device=device)
        noise, t = upload(inputs.noise, device), upload(inputs.times, device)
        with self.precision.autocast():
            x_t = noisy_input(self.denoiser, prepared, noise, t, self.objective, inputs.perturbation)
            loss = preservation.loss(self.denoiser, self.network, inputs.batch, x_t, t)
        self.scaler.scale(loss * plan.share if plan.share != 1 else loss).backward()
        return loss.detach()

    def _perturbation(self, plan: BatchPlan, like: Tensor) -> list[Tensor]:
        if not self.objective.input_perturbation:
            return []
        return [plan.take(draw_perturbation(plan.widen(like), self._random(plan, "perturbation")))]

    def _noise(self, plan: BatchPlan, like: Tensor) -> Tensor:
        return plan.take(draw_noise(plan.widen(like), self.objective, self._random(plan, "noise")))

    def _mask_numbers(self, plan: BatchPlan) -> Tensor | None:
        if self.objective.rules < 3:
            return None
        return upload(draw_numbers(self._random(plan, "masks")), self.denoiser.device)

    def _random(self, plan: BatchPlan, purpose: str) -> torch.Generator:
        return seeded_generator(f"{self.seed}:{plan.number}:{purpose}")


def plain_mean(rows: list[tuple[Tensor, int]]) -> Tensor:
    """The mean of (losses, number of rows before the prior ones) over several batches, without their prior rows."""
    own = [losses[:main] for losses, main in rows if main]
    return torch.cat(own or [losses for losses, _ in rows]).mean()


@torch.no_grad()
def clip_gradients(parameters: Sequence[Tensor], largest: float) -> Tensor:
    """Scale all gradients so that their norm is at most `largest`; returns the norm that they had.

    As torch's `clip_grad_norm_`, in a few calls for all of them on every device; nothing is read from the device.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros(())
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))  # pyright: ignore[reportPrivateImportUsage]
    if largest < math.inf:
        factor = (largest / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, factor)  # pyright: ignore[reportPrivateImportUsage]
    return norm


def check_calls(network: Network, place: str) -> None:
    """Refuse layers that were not called since `network.forget_calls()`: their adapters have no effect there."""
    skipped = network.uncalled()
    if skipped:
        raise TrainError(
            f"{len(skipped)} of {len(network.trained())} adapted layers are never called {place} ({_first(skipped)}): "
            "the model skips them, or uses their weights in another way; leave them out: add "
            f'"{targets_without(skipped, network.trained())}" to the targets, or set their group_rates to 0'
        )


def _first(names: Sequence[str]) -> str:
    return f"{', '.join(names[:8])}{', …' if len(names) > 8 else ''}"
