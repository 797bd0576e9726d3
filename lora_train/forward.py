"""The forward of a module, replaced for a while: how blocks are checkpointed, copied for, and frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Another `forward` for the time of the `with`. Several may lie over each other, and end in the reverse order."""
    own = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        # A forward that came from the class leaves nothing of its own behind; one that was patched, its patch.
        del module.forward
        if own is not None:
            module.forward = own
