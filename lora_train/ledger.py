"""The ledger of losses: reads them without stopping a GPU, and refuses those that are no numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import TrainError


class NonFiniteLoss(TrainError):
    """A loss of nan or infinity. Whatever was computed after it must not be saved."""


@dataclass(frozen=True)
class Entry:
    """A step whose loss is on its way, with what the report says of it."""

    step: int
    epoch: int
    rate: float
    loss: Tensor
    rows: int = 1
    arrived: Any = None


class Ledger:
    """On the CPU a loss is read at once. On a GPU it is copied beside the work and read when the next one is added:
    reading it at once would make the device wait for Python in every step."""

    def __init__(self, device: torch.device) -> None:
        self._copies = device.type == "cuda"
        self._waiting: Entry | None = None

    def add(self, step: int, epoch: int, rate: float, loss: Tensor, rows: int = 1) -> list[tuple[Entry, float]]:
        """Take a loss in; returns those that can be read now."""
        if not self._copies:
            return [_read(Entry(step, epoch, rate, loss, rows))]
        before = self.drain()
        host = torch.empty((), dtype=loss.dtype, pin_memory=True)
        host.copy_(loss, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self._waiting = Entry(step, epoch, rate, host, rows, arrived)
        return before

    def drain(self) -> list[tuple[Entry, float]]:
        """What is still on its way."""
        entry, self._waiting = self._waiting, None
        return [] if entry is None else [_read(entry)]


def _read(entry: Entry) -> tuple[Entry, float]:
    if entry.arrived is not None:
        entry.arrived.synchronize()
    value = float(entry.loss)
    if not math.isfinite(value):
        raise NonFiniteLoss(
            f"step {entry.step}: the loss is {value}; lower learning_rate, or choose precision bf16 or fp32"
        )
    return entry, value
