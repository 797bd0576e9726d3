"""Tensors without data: they have a shape, a type and a device, and operations on them take no memory and little time.

A model of any size can be stepped with them in place of its weights. Its own tensors are put back afterwards, the same
objects as before, together with everything else that its code may have changed on its modules meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ...dataset_cache import Batch

Place = Callable[[nn.Module], torch.device]  # where the weights of a module are while it trains


class Shapes:
    """Makes tensors without data. They can be used together only inside `mode`."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)

    def of(self, tensor: Any, device: torch.device | None = None) -> Tensor:
        """A tensor like this one without its data; a parameter for a parameter."""
        made = self._like(tensor, device or tensor.device)
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(made, requires_grad=tensor.requires_grad)
        for name, value in vars(tensor).items():  # that quantizing code sets on tensors
            if name not in vars(made) and not isinstance(value, Tensor):
                setattr(made, name, value)
        return made

    def of_batch(self, batch: Batch) -> Batch:
        """A batch like this one without its data."""
        return batch.map(self.of)

    @contextmanager
    def instead_of_weights(self, model: nn.Module, place: Place) -> Iterator[None]:
        """Inside the `with`, the model has no data. Whatever else changes on its modules is undone afterwards too."""
        before = [_Snapshot(module) for module in model.modules()]
        made: dict[int, Tensor] = {}  # tied weights stay tied
        try:
            for snapshot in before:
                device = place(snapshot.module)
                for table in snapshot.tables():
                    for name, tensor in list(table.items()):
                        if isinstance(tensor, Tensor):
                            if id(tensor) not in made:
                                made[id(tensor)] = self.of(tensor, device)
                            table[name] = made[id(tensor)]
            yield
        finally:
            for snapshot in before:
                snapshot.restore()

    def _like(self, tensor: Any, device: torch.device) -> Tensor:
        if hasattr(tensor, "__tensor_flatten__"):  # consists of other tensors, as quantized weights do
            names, context = tensor.__tensor_flatten__()
            parts = {name: self._like(getattr(tensor, name), device) for name in names}
            with self.mode:
                return type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
        with self.mode:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)


class _Snapshot:
    """The tensors and attributes of one module."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._tables = [(table, dict(table)) for table in self.tables()]
        self._contents = [(value, value.copy()) for value in vars(module).values() if type(value) in (dict, list, set)]

    def tables(self) -> list[dict[str, Any]]:
        return [self.module._parameters, self.module._buffers, vars(self.module)]

    def restore(self) -> None:
        for table, values in self._tables:
            table.clear()
            table.update(values)
        for value, content in self._contents:
            if type(value) is list:
                value[:] = content
            else:
                value.clear()
                value.update(content)
