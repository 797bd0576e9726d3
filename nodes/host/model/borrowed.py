"""What training borrows from ComfyUI and puts back whatever happens: weights, generators, attributes.

ComfyUI loads models under inference mode, and autograd refuses to save such tensors for a backward pass. A tensor made
outside that mode can alias the same memory without a copy; the model has these aliases while it trains, and its own
tensors again afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from comfy.cli_args import args
from torch import Tensor, nn

from ....lora_train import generator_state, restore_generator

# Options of ComfyUI that turn off its compiler and its CUDA graphs. Which of them exist depends on its version.
WITHOUT_RECORDING = ("disable_comfy_compiler", "disable_cuda_graphs")


@dataclass(frozen=True)
class _Swap:
    """One tensor that an alias replaces."""

    table: dict[str, Any]  # a module's own parameters, buffers or attributes
    name: str
    own: Tensor
    alias: Tensor


class Aliases:
    """The tensors replaced in a model. `take` may be called again after ComfyUI has moved weights."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._swaps: list[_Swap] = []

    def take(self) -> None:
        """Replace every inference tensor by an alias."""
        made: dict[int, Tensor] = {}  # tied weights stay tied
        for module in self.model.modules():
            tables: list[dict[str, Any]] = [module._parameters, module._buffers, vars(module)]
            for table in tables:
                found = [(name, own) for name, own in table.items() if isinstance(own, Tensor) and own.is_inference()]
                for name, own in found:
                    table[name] = made.setdefault(id(own), alias_of(own))
                    self._swaps.append(_Swap(table, name, own, table[name]))

    def give_back(self) -> None:
        """Put the model's own tensors back, except those that ComfyUI has moved or replaced meanwhile."""
        while self._swaps:
            swap = self._swaps.pop()
            if swap.table.get(swap.name) is swap.alias and memory_of(swap.own) == memory_of(swap.alias):
                swap.table[swap.name] = swap.own


@contextmanager
def normal_weights(model: nn.Module) -> Iterator[Aliases]:
    """The model without inference tensors, for the time of the `with`."""
    aliases = Aliases(model)
    try:
        aliases.take()
        yield aliases
    finally:
        aliases.give_back()


@contextmanager
def changed(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Sets an attribute for the time of the `with`."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def nothing_recorded() -> Iterator[None]:
    """Inside the `with`, ComfyUI neither compiles blocks nor records them as CUDA graphs.

    It does not ask whether a model trains, and replays a block without calling its layers: there would be no gradient,
    and sample images would show adapters as they were when the block was recorded.
    """
    with ExitStack() as options:
        for name in WITHOUT_RECORDING:
            if hasattr(args, name):
                options.enter_context(changed(args, name, True))
        yield


@contextmanager
def generators_kept(device: torch.device) -> Iterator[None]:
    """Restores torch's global generators after the `with`, because ComfyUI's samplers seed them."""
    here = torch.get_rng_state()
    there = generator_state(device)
    try:
        yield
    finally:
        torch.set_rng_state(here)
        restore_generator(device, there)


@contextmanager
def calls_noted(modules: Iterable[nn.Module]) -> Iterator[set[int]]:
    """The ids of the modules that are called inside the `with`."""
    called: set[int] = set()
    with ExitStack() as hooks:
        for module in modules:
            hooks.callback(module.register_forward_pre_hook(lambda layer, _: called.add(id(layer))).remove)
        yield called


@contextmanager
def native_output(sampling: Any) -> Iterator[None]:
    """Inside the `with`, the model returns its native prediction instead of denoised latents."""
    own = vars(sampling).get("calculate_denoised")  # another pack's
    sampling.calculate_denoised = _native
    try:
        yield
    finally:
        del sampling.calculate_denoised
        if own is not None:
            sampling.calculate_denoised = own


@torch.inference_mode(False)
def alias_of(tensor: Tensor) -> Tensor:
    """A normal tensor of the same type on the same memory; a parameter for a parameter."""
    made = _alias(tensor)
    _copy_attributes(tensor, made)
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made, requires_grad=False)
        _copy_attributes(tensor, made)
    return made


def memory_of(tensor: Any) -> tuple[int, ...]:
    """Where a tensor's bytes are; several places if it consists of several tensors."""
    if hasattr(tensor, "__tensor_flatten__"):
        return tuple(place for name in tensor.__tensor_flatten__()[0] for place in memory_of(getattr(tensor, name)))
    return (tensor.untyped_storage().data_ptr(), tensor.storage_offset())


def _copy_attributes(tensor: Tensor, made: Tensor) -> None:
    """Copy the attributes that ComfyUI and quantizing packs set on tensors."""
    for name, value in vars(tensor).items():
        if name not in vars(made):
            setattr(made, name, value)


def _alias(tensor: Any) -> Tensor:
    if hasattr(tensor, "__tensor_flatten__"):  # consists of other tensors, as ComfyUI's quantized weights do
        names, context = tensor.__tensor_flatten__()
        parts = {name: _alias(getattr(tensor, name)) for name in names}
        return type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
    plain = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    with torch._C.DisableTorchFunctionSubclass():
        plain.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
    kind = type(tensor)
    return plain if kind in (Tensor, nn.Parameter) else plain.as_subclass(kind)


def _native(sigma: Tensor, model_output: Tensor, model_input: Tensor) -> Tensor:
    return model_output
