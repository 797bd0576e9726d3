"""How a step is computed and what it keeps in memory: precision, compiled blocks, checkpointing, activations in RAM."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from .compute import Compiler, can_pin, supports_bf16

PRECISIONS: dict[str, torch.dtype | None] = {
    "auto": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}


RAM = torch.device("cpu")
WORTH_MOVING = 1 << 18  # bytes; smaller activations stay where they are


@dataclass(frozen=True)
class Precision:
    """The precision of a step on one device. The adapter's weights keep their own dtype."""

    name: str
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        dtype = PRECISIONS[self.name]
        assert dtype is not None
        return dtype

    def autocast(self) -> AbstractContextManager[object]:
        """The context for a forward pass."""
        if self.name == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def make_scaler(self) -> torch.amp.GradScaler:
        """Only fp16 gradients need scaling; for other precisions the scaler changes nothing."""
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "fp16")


def choose_precision(name: str, device: torch.device) -> Precision:
    """`auto` is bf16 on a GPU that supports it, otherwise fp32."""
    if name == "auto":
        name = "bf16" if supports_bf16(device) else "fp32"
    return Precision(name, device)


@contextmanager
def saving_memory(
    blocks: Iterable[nn.Module], checkpointing: bool, in_ram: bool, ram: torch.device = RAM
) -> Iterator[None]:
    """The settings `checkpointing` and `activation_offload`, for the time of the `with`."""
    blocks = list(blocks)
    with ExitStack() as stack:
        if checkpointing:
            stack.enter_context(checkpointed(blocks))
        if in_ram:
            stack.enter_context(activations_in_ram(blocks, ram))
        yield


@contextmanager
def compiled(
    blocks: Iterable[nn.Module], note: Callable[[str], None], backend: str | Callable[..., Any] = "inductor"
) -> Iterator[None]:
    """Compile each block inside the `with`, together with its adapters. Checkpointing comes around it."""
    blocks = {id(block): block for block in blocks}.values()
    compiler = Compiler(note, backend)
    with compiler.limits(len(blocks)), ExitStack() as restore:
        for block in blocks:
            restore.enter_context(replaced_forward(block, compiler.compiled(block.forward)))
        yield


@contextmanager
def checkpointed(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Checkpoint each block inside the `with`: its activations are recomputed in the backward pass, not kept."""
    with ExitStack() as restore:
        for block in {id(block): block for block in blocks}.values():
            restore.enter_context(replaced_forward(block, _recomputing(block.forward)))
        yield


@contextmanager
def activations_in_ram(blocks: Iterable[nn.Module], ram: torch.device = RAM, always: bool = False) -> Iterator[None]:
    """Inside the `with`, what a block keeps for its backward pass waits in RAM. Checkpointed blocks keep their inputs.

    On the CPU nothing is copied, unless `always`.
    """
    with ExitStack() as restore:
        for block in {id(block): block for block in blocks}.values():
            restore.enter_context(replaced_forward(block, _keeping_in_ram(block, block.forward, ram, always)))
        yield


def is_plain(tensor: object) -> bool:
    """Whether a tensor has torch's own type, also if it has no data, as in a memory forecast."""
    return type(tensor) in (Tensor, nn.Parameter) or isinstance(tensor, FakeTensor)


def with_data() -> AbstractContextManager[object]:
    """Inside the `with`, new tensors have data, also in a memory forecast."""
    return unset_fake_temporarily()


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace a module's `forward` inside the `with`. Replacements can be nested."""
    own = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        # A forward of the class needs no attribute on the module; an earlier patch is restored.
        del module.forward
        if own is not None:
            module.forward = own


def _recomputing(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        # Tensors are passed by position, and nothing else refers to them: `checkpoint` saves only those in a way that
        # `activations_in_ram` sees.
        names = [name for name, value in kwargs.items() if isinstance(value, Tensor)]
        others = {name: value for name, value in kwargs.items() if name not in names}
        call = partial(_call, forward, len(args), names, others)
        given = (*args, *(kwargs[name] for name in names))
        # A generator's state is data, which a memory forecast does not have.
        real = not any(isinstance(value, FakeTensor) for value in given)
        return checkpoint(call, *given, use_reentrant=False, preserve_rng_state=real)

    return wrapped


def _call(forward: Callable[..., Any], count: int, names: list[str], others: dict[str, Any], *given: Any) -> Any:
    return forward(*given[:count], **dict(zip(names, given[count:])), **others)


def _keeping_in_ram(
    block: nn.Module, forward: Callable[..., Any], ram: torch.device, always: bool
) -> Callable[..., Any]:
    @wraps(forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        shelf = _Shelf(block, ram, always)
        with saved_tensors_hooks(shelf.put, shelf.take):
            return forward(*args, **kwargs)

    return wrapped


class _Shelf:
    """Where the activations of one pass through a block wait."""

    def __init__(self, block: nn.Module, ram: torch.device, always: bool) -> None:
        self._ram, self._always = ram, always
        self._weights = {_memory(weight) for weight in block.parameters() if is_plain(weight)}
        self._known: dict[tuple[Any, ...], tuple[Any, Tensor]] = {}  # several operations may save the same tensor

    def put(self, tensor: Tensor) -> tuple[Tensor, torch.device | None]:
        """The tensor's copy in RAM and the device to bring it back to; None if it stays where it is."""
        small = tensor.numel() * tensor.element_size() < WORTH_MOVING and not self._always
        there = tensor.device == self._ram and not self._always
        if small or there or not is_plain(tensor) or _memory(tensor) in self._weights:
            return tensor, None
        place = (_memory(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version)
        alive, copy = self._known.get(place, (lambda: None, tensor))
        if alive() is None:  # else its memory may belong to another tensor by now
            copy = _copy_to(tensor, self._ram)
            self._known[place] = weakref.ref(tensor.untyped_storage()), copy
        return copy, tensor.device

    def take(self, kept: tuple[Tensor, torch.device | None]) -> Tensor:
        copy, device = kept
        return copy if device is None else copy.to(device, non_blocking=True)


def _copy_to(tensor: Tensor, ram: torch.device) -> Tensor:
    # Copies from and to pinned memory do not stop the device; both are in order with its other work.
    pinned = ram == RAM and not isinstance(tensor, FakeTensor) and can_pin(tensor.device)
    copy = torch.empty_like(tensor, device=ram, pin_memory=pinned)
    return copy.copy_(tensor, non_blocking=pinned)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
