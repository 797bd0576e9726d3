"""Blocks that write to their own activations in place (`x += …`), as several ComfyUI models do to save memory.

That is fine for sampling. In training, autograd may still need the overwritten values and raises, and a checkpointed
block would start its second pass from an input that its first pass has changed. So one forward pass is watched, and
from then on overwritten inputs are passed as copies while gradients are enabled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ....lora_train import replaced_forward

Seen = list[tuple[nn.Module, Tensor, int]]  # module, its input, and the version of that input


class Blocks:
    """A model's blocks, and which of their inputs and of their layers' inputs they overwrite."""

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        self.all = list({id(block): block for block in blocks}.values())
        self._overwritten: set[int] = set()  # ids of modules whose input is overwritten

    def learned(self) -> set[int]:
        """What `watched` has found so far."""
        return set(self._overwritten)

    def learn(self, found: set[int]) -> None:
        """Go back to what was found before."""
        self._overwritten = found

    @contextmanager
    def wrapped(self) -> Iterator[None]:
        """Inside the `with`, modules get copies of inputs that are overwritten."""
        with ExitStack() as restore:
            for block in self.all:
                # A block copies inside its `forward`, so that a second pass gets the same input as the first.
                restore.enter_context(replaced_forward(block, self._copying(block, block.forward)))
                for layer in _leaves(block):
                    restore.callback(layer.register_forward_pre_hook(self._copy_given, with_kwargs=True).remove)
            yield

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Learn from a forward pass inside the `with`."""
        with ExitStack() as hooks:
            for block in self.all:
                for handle in self._watch(block):
                    hooks.callback(handle.remove)
            yield

    def _copying(self, block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            copied = self._copy_given(block, args, kwargs)
            if copied is not None:
                args, kwargs = copied
            return forward(*args, **kwargs)

        return wrapper

    def _copy_given(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if id(module) not in self._overwritten or not torch.is_grad_enabled():
            return None
        return tuple(_copy(value) for value in args), {name: _copy(value) for name, value in kwargs.items()}

    def _watch(self, block: nn.Module) -> Iterator[Any]:
        seen: Seen = []

        def note(module: nn.Module, args: tuple, kwargs: dict) -> None:
            given = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
            seen.extend((module, tensor, tensor._version) for tensor in given)

        def compare(*_: Any) -> None:
            self._overwritten |= {id(module) for module, tensor, version in seen if tensor._version != version}
            seen.clear()

        for module in (block, *_leaves(block)):
            yield module.register_forward_pre_hook(note, with_kwargs=True)
        yield block.register_forward_hook(compare, always_call=True)


def _leaves(block: nn.Module) -> list[nn.Module]:
    return [module for module in block.modules() if module is not block and not any(True for _ in module.children())]


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) and value.is_floating_point() else value
