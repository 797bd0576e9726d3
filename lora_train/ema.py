"""A moving average of the trained weights: what is saved and sampled when it is switched on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


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
