"""The moving average of trained weights (EMA)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


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
        live = [value.float() for value in self._live.values()]
        torch._foreach_lerp_(list(self._mean.values()), live, 1 - decay)  # pyright: ignore[reportPrivateImportUsage]

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
