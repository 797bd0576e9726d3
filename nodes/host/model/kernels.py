"""ComfyUI's kernels, which fuse several operations into one: those without a gradient are replaced while training.

Most models have a second path for training, but not all: some always call a kernel, and some call one in that path too.
Every kernel comes with its formula in torch's operations, which has a gradient.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import comfy.quant_ops
import torch
from torch import Tensor

from ....dataset_cache import is_out_of_memory
from .borrowed import changed

log = logging.getLogger("streamcache")
Kernel = Callable[..., Any]


@contextmanager
def differentiable_kernels() -> Iterator[None]:
    """Inside the `with`, a kernel that gradients cannot pass is computed by its formula where a gradient is needed."""
    with ExitStack() as restore:
        library = getattr(comfy.quant_ops, "ck", None)  # missing if it could not be imported
        for name, (kernel, formula) in _with_formulas(library).items():
            restore.enter_context(changed(library, name, _trained(kernel, formula)))
        yield


def _with_formulas(library: Any) -> dict[str, tuple[Kernel, Kernel]]:
    """The kernels of a library whose formula takes the same arguments, by name."""
    found = {}
    for name in getattr(library, "__all__", ()):
        kernel, formula = getattr(library, name), _formula(library, name)
        if formula is not None and inspect.isfunction(kernel) and _names(kernel) == _names(formula):
            found[name] = kernel, formula
    return found


def _formula(library: Any, name: str) -> Kernel | None:
    try:
        return library.registry.get_implementation(name, backend="eager")
    except (AttributeError, getattr(library, "BackendError", AttributeError)):
        return None


def _names(function: Kernel) -> list[str]:
    return list(inspect.signature(function).parameters)


def _trained(kernel: Kernel, formula: Kernel) -> Kernel:
    chosen: list[Kernel] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not chosen:
            replaced = not has_gradient(kernel, args, kwargs) and has_gradient(formula, args, kwargs)
            chosen.append(formula if replaced else kernel)
        given = (*args, *kwargs.values())
        needed = torch.is_grad_enabled() and any(isinstance(v, Tensor) and v.requires_grad for v in given)
        return chosen[0](*args, **kwargs) if needed else kernel(*args, **kwargs)

    return call


def has_gradient(kernel: Kernel, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether gradients pass through a kernel that is called like this: some of its inputs never get one."""

    def call(*values: Any) -> Any:
        return kernel(*values[: len(args)], **dict(zip(kwargs, values[len(args) :])))

    return any(reached(call, (*args, *kwargs.values())))


def reached(function: Kernel, values: tuple) -> list[bool]:
    """Whether gradients reach each of the values that can have one. If the function fails, they reach none."""
    with torch.inference_mode(False), torch.enable_grad():
        values = tuple(_leaf(value) for value in values)
        given = [value for value in values if isinstance(value, Tensor) and value.requires_grad]
        try:
            made = function(*values)
            results = [value for value in (made if isinstance(made, tuple) else (made,)) if value.requires_grad]
            found = torch.autograd.grad([value.sum() for value in results], given, allow_unused=True)
        except Exception as error:  # kernels refuse inputs in their own ways, also by assert
            if is_out_of_memory(error):
                raise
            log.debug("A kernel has no gradient: %s: %s", type(error).__name__, error)
            return [False]
    return [gradient is not None for gradient in found]


def _leaf(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = value.detach().clone()
    return value.requires_grad_() if value.is_floating_point() else value
