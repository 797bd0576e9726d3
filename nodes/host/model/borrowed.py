"""A model's weights as autograd takes them, without a copy.

The host makes models under inference mode, and autograd refuses to keep such tensors for a backward pass. A tensor made
outside of that mode may look into the same memory; the model holds these while it trains, and its own again after.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class _Swap:
    table: dict[str, Any]  # a module's own parameters, buffers or attributes
    name: str
    own: Tensor
    alias: Tensor


class Aliases:
    """What was exchanged in a model. `take` may be called again after the host has moved weights about."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._swaps: list[_Swap] = []

    def take(self) -> None:
        """Put an alias in the place of every inference tensor."""
        made: dict[int, Tensor] = {}  # tied weights stay tied
        for module in self.model.modules():
            for table in (module._parameters, module._buffers, vars(module)):
                found = [(name, own) for name, own in table.items() if isinstance(own, Tensor) and own.is_inference()]
                for name, own in found:
                    table[name] = made.setdefault(id(own), alias_of(own))
                    self._swaps.append(_Swap(table, name, own, table[name]))

    def give_back(self) -> None:
        """Put the model's own tensors back, but for those that the host has moved or exchanged meanwhile."""
        while self._swaps:
            swap = self._swaps.pop()
            if swap.table.get(swap.name) is swap.alias and memory_of(swap.own) == memory_of(swap.alias):
                swap.table[swap.name] = swap.own


@contextmanager
def normal_weights(model: nn.Module) -> Iterator[Aliases]:
    """The model without inference tensors for the time of the `with`."""
    aliases = Aliases(model)
    try:
        aliases.take()
        yield aliases
    finally:
        aliases.give_back()


@torch.inference_mode(False)
def alias_of(tensor: Tensor) -> Tensor:
    """A normal tensor of the same type in the same memory; a parameter for a parameter."""
    made = _alias(tensor)
    _copy_notes(tensor, made)
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made, requires_grad=False)
        _copy_notes(tensor, made)
    return made


def memory_of(tensor: Tensor) -> tuple[int, ...]:
    """Where a tensor's bytes lie; several places for one that is made of others."""
    if hasattr(tensor, "__tensor_flatten__"):
        return tuple(place for name in tensor.__tensor_flatten__()[0] for place in memory_of(getattr(tensor, name)))
    return (tensor.untyped_storage().data_ptr(), tensor.storage_offset())


def _copy_notes(tensor: Tensor, made: Tensor) -> None:
    """The host and quantising packs keep facts on their tensors."""
    for name, value in vars(tensor).items():
        if name not in vars(made):
            setattr(made, name, value)


def _alias(tensor: Tensor) -> Tensor:
    if hasattr(tensor, "__tensor_flatten__"):  # made of other tensors, as the host's quantised weights are
        names, context = tensor.__tensor_flatten__()
        parts = {name: _alias(getattr(tensor, name)) for name in names}
        return type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
    plain = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    with torch._C.DisableTorchFunctionSubclass():
        plain.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
    kind = type(tensor)
    return plain if kind in (Tensor, nn.Parameter) else plain.as_subclass(kind)
