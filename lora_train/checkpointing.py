"""Gradient checkpointing: a block's activations are made again in the backward pass instead of being kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .forward import replaced_forward


@contextmanager
def checkpointed(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Checkpoint each block by itself for the time of the `with`; their own `forward` is back after it."""
    with ExitStack() as restore:
        for block in {id(block): block for block in blocks}.values():
            restore.enter_context(replaced_forward(block, _recomputing(block.forward)))
        yield


def _recomputing(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return wrapped
