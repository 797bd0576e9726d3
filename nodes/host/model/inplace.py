"""Blocks that write to their own activations in place (`x += …`), as several ComfyUI models do to save memory.

That is fine for sampling. In training, autograd may still need the overwritten values and raises, and a checkpointed
block would start its second pass from an input that its first pass has changed, or compute its gradients from values
that are no longer those of the forward pass. So two forward passes are watched before the first step:

- The first finds inputs of blocks and of their layers that are overwritten. They are passed as copies from then on.
- The second runs with these copies and with gradients, as training does, and sees every tensor that autograd keeps.
  What is still overwritten was kept for a function outside of the layers (LTXV normalizes `x` by one and then adds to
  `x`). In these blocks, such functions get copies too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from ....lora_train import replaced_forward

Place = int | str  # of an argument: its position or its name
Seen = list[tuple[nn.Module, Place, Tensor, int]]  # module, argument, its value, and the version of that value
Learned = tuple[Mapping[int, frozenset[Place]], Mapping[int, bool]]


class Blocks:
    """A model's blocks, and which of their inputs and of their layers' inputs they overwrite."""

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        self.all = list({id(block): block for block in blocks}.values())
        self._overwritten: dict[int, frozenset[Place]] = {}  # by the id of a module: its overwritten arguments
        # Ids of blocks whose functions need copies: of everything, or only of what is in the copied inputs.
        self._functions: dict[int, bool] = {}
        self._copies: dict[int, list[Tensor]] | None = None  # of inputs, by the id of a block, in the watched pass

    def learned(self) -> Learned:
        """What the watched passes have found so far."""
        return dict(self._overwritten), dict(self._functions)

    def learn(self, found: Learned) -> None:
        """Go back to what was found before."""
        self._overwritten, self._functions = dict(found[0]), dict(found[1])

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
        """Learn from a forward pass inside the `with` which inputs are overwritten."""
        with ExitStack() as hooks:
            for block in self.all:
                for handle in self._watch(block):
                    hooks.callback(handle.remove)
            yield

    @contextmanager
    def watched_with_gradients(self, layers: Iterable[nn.Module]) -> Iterator[None]:
        """Learn from a forward pass inside the `with` what is still overwritten. Its gradients begin at these layers.

        Nothing is kept for a backward pass, so this needs no more memory than one block.
        """
        with ExitStack() as restore, torch.enable_grad():
            self._copies = {}
            restore.callback(setattr, self, "_copies", None)
            start = torch.zeros((), requires_grad=True)
            for layer in layers:
                restore.callback(layer.register_forward_hook(lambda *call: call[-1] + start).remove)
            for block in self.all:
                restore.enter_context(replaced_forward(block, self._noting(block, block.forward)))
            restore.enter_context(saved_tensors_hooks(lambda tensor: None, _never))
            yield

    def _copying(self, block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            given = (*args, *kwargs.values())
            copied = self._copy_given(block, args, kwargs)
            if copied is not None:
                args, kwargs = copied
            now = zip(given, (*args, *kwargs.values()), strict=True)
            copies = [value for before, value in now if value is not before]
            if self._copies is not None:
                self._copies[id(block)] = copies
            # A compiler cannot follow the copies. Where they are needed, it fails, and the block trains without it.
            if id(block) not in self._functions or not torch.is_grad_enabled() or torch.compiler.is_compiling():
                return forward(*args, **kwargs)
            everything = self._functions[id(block)]
            with _CopiesForFunctions(set() if everything else {_storage(value) for value in copies}):
                return forward(*args, **kwargs)

        return wrapper

    def _copy_given(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        places = self._overwritten.get(id(module))
        if not places or not torch.is_grad_enabled():
            return None

        def copy(place: Place, value: Any) -> Any:
            return value.clone() if place in places and _can_copy(value) else value

        return tuple(map(copy, range(len(args)), args)), {name: copy(name, value) for name, value in kwargs.items()}

    def _watch(self, block: nn.Module) -> Iterator[Any]:
        seen: Seen = []

        def note(module: nn.Module, args: tuple, kwargs: dict) -> None:
            given = (*enumerate(args), *kwargs.items())
            seen.extend((module, place, value, value._version) for place, value in given if _can_copy(value))

        def compare(*_: Any) -> None:
            for module, place, value, version in seen:
                if value._version != version:
                    self._overwritten[id(module)] = self._overwritten.get(id(module), frozenset()) | {place}
            seen.clear()

        for module in (block, *_leaves(block)):
            yield module.register_forward_pre_hook(note, with_kwargs=True)
        yield block.register_forward_hook(compare, always_call=True)

    def _noting(self, block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            # Detached tensors have the same version, but not the graph: it holds them, and neither would be freed.
            kept: list[tuple[Tensor, int]] = []
            with saved_tensors_hooks(lambda tensor: kept.append((tensor.detach(), tensor._version)), _never):
                made = forward(*args, **kwargs)
            overwritten = [tensor for tensor, version in kept if tensor._version != version]
            if overwritten:
                inputs = {_storage(value) for value in (self._copies or {}).get(id(block), ())}
                elsewhere = any(_storage(tensor) not in inputs for tensor in overwritten)
                self._functions[id(block)] = elsewhere or self._functions.get(id(block), False)
            return made

        return wrapper


class _CopiesForFunctions(TorchFunctionMode):
    """Functions get copies of what is in these storages, or of everything if there are none, so that autograd keeps
    the copies. A function that writes to its argument or returns a view of it gets the argument itself."""

    def __init__(self, storages: set[int]) -> None:
        super().__init__()
        self._storages = storages

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "__get__" or not torch.is_grad_enabled():  # x.shape and the like
            return func(*args, **kwargs)
        copies: list[Tensor] = []

        def copy(value: Any) -> Any:
            if not _can_copy(value) or not value.requires_grad or not self._is_meant(value):
                return value
            copies.append(value.clone())
            return copies[-1]

        given = tree_map(copy, args), tree_map(copy, kwargs)
        if not copies:
            return func(*args, **kwargs)
        made = func(*given[0], **given[1])
        places = {_storage(each) for each in copies}
        viewed = any(isinstance(value, Tensor) and _storage(value) in places for value in tree_leaves(made))
        return func(*args, **kwargs) if viewed or any(each._version for each in copies) else made

    def _is_meant(self, value: Tensor) -> bool:
        return not self._storages or _storage(value) in self._storages


def _leaves(block: nn.Module) -> list[nn.Module]:
    return [module for module in block.modules() if module is not block and not any(True for _ in module.children())]


def _can_copy(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _never(_: Any) -> Tensor:
    raise AssertionError("a watched pass has no backward pass")
