"""The losses of steps, on their way from the device."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...errors import TrainError
from ..compute import can_pin, device_streams, is_accelerator


class NonFiniteLoss(TrainError):
    """The loss is nan or infinite. Nothing computed after it may be saved."""


@dataclass(frozen=True)
class LossEntry:
    """A step whose loss may still be on the GPU, with the values that are reported for it."""

    step: int
    epoch: int
    rate: float
    loss: Tensor
    rows: int = 1
    gradient_norm: float | None = None
    arrived: Any = None  # the event after its copy to the host; None: it is read from where it is


class LossLedger:
    """Reads losses without stalling the GPU.

    On the CPU a loss is read at once. On a GPU it is copied asynchronously and read when the next one is added:
    reading it at once would make the GPU wait for Python in every step. A device that cannot copy that way keeps it
    until then.
    """

    def __init__(self, device: torch.device) -> None:
        self._waits = is_accelerator(device)
        self._events = device_streams(device) if can_pin(device) else None
        self._waiting: LossEntry | None = None

    def add(
        self, step: int, epoch: int, rate: float, loss: Tensor, rows: int = 1, norm: Tensor | None = None
    ) -> list[tuple[LossEntry, float]]:
        """Add a loss, with the norm of its gradients; returns the losses that can be read now."""
        if norm is not None:
            loss = torch.stack([loss.float(), norm.float()])
        if not self._waits:
            return [_read(LossEntry(step, epoch, rate, loss, rows))]
        before = self.drain()
        arrived = None
        if self._events is not None:
            loss = torch.empty(loss.shape, dtype=loss.dtype, pin_memory=True).copy_(loss, non_blocking=True)
            arrived = self._events.Event()
            arrived.record()
        self._waiting = LossEntry(step, epoch, rate, loss, rows, arrived=arrived)
        return before

    def drain(self) -> list[tuple[LossEntry, float]]:
        """The losses that have not been read yet."""
        entry, self._waiting = self._waiting, None
        return [] if entry is None else [_read(entry)]


def _read(entry: LossEntry) -> tuple[LossEntry, float]:
    if entry.arrived is not None:
        entry.arrived.synchronize()
    value, *norms = entry.loss.reshape(-1).tolist()
    if not math.isfinite(value):
        raise NonFiniteLoss(
            f"step {entry.step}: the loss is {value}; lower learning_rate, or choose precision bf16 or fp32"
        )
    # In fp16 a gradient overflows now and then; that step is skipped, and a curve cannot show its norm.
    return replace(entry, gradient_norm=next((norm for norm in norms if math.isfinite(norm)), None)), value
