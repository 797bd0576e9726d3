"""What a step computes in and what it keeps in memory: precision, gradient checkpointing, replaced forwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

PRECISIONS: dict[str, torch.dtype | None] = {
    "auto": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}


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
        name = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    return Precision(name, device)


@contextmanager
def checkpointed(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Checkpoint each block inside the `with`: its activations are recomputed in the backward pass, not kept."""
    with ExitStack() as restore:
        for block in {id(block): block for block in blocks}.values():
            restore.enter_context(replaced_forward(block, _recomputing(block.forward)))
        yield


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
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return wrapped
