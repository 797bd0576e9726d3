"""Tensors whose bytes stay on disk until an operation needs their values.

A `LazyTensor` is a `torch.Tensor`: shape, dtype, device and size are known without I/O, and any operation reads the
bytes, works on them and lets them go. Writing into one (`x += 1`, `x[0] = 5`, `out=x`) turns that object into a
private copy in memory; the file never changes. A view of one (`x[0]`, `x.view(-1)`) is a copy, as after `clone()`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from .codecs import codec_for
from .errors import CacheError

# These look at shape and type only, so they are given memory that nobody fills.
_SHAPE_ONLY = {
    "aten::empty_like",
    "aten::zeros_like",
    "aten::ones_like",
    "aten::full_like",
    "aten::rand_like",
    "aten::randn_like",
    "aten::randint_like",
    "aten::new_empty",
    "aten::new_zeros",
    "aten::new_ones",
    "aten::new_full",
    "aten::new_empty_strided",
}


class LazyTensor(torch.Tensor):
    """A tensor that `load` reads when it is used. `load` returns a new tensor of this shape and dtype at every call."""

    _load: Callable[[], torch.Tensor]
    _own: torch.Tensor | None

    # Results of operations are ordinary tensors, so torch must not wrap them in this class again.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, shape: tuple[int, ...], dtype: torch.dtype, load: Callable[[], torch.Tensor]) -> "LazyTensor":
        # Made outside inference mode: a node that loads runs inside it, one that trains later does not.
        with torch.inference_mode(False):
            lazy = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device="cpu")
        lazy._load = load
        lazy._own = None
        return lazy

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def realize(self) -> torch.Tensor:
        """The values, as an ordinary tensor. Nothing is kept here, unless this object was written to before."""
        if self._own is not None:
            return self._own
        # An ordinary tensor even where a node runs in inference mode: views of this object take part in autograd.
        with torch.inference_mode(False):
            return self._load()

    def own(self) -> torch.Tensor:
        """Turn this object into a private copy in memory and return that."""
        if self._own is None:
            self._own = self.realize()
        return self._own

    @property
    def is_real(self) -> bool:
        """Whether this object holds its values in memory because it was written to."""
        return self._own is not None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket in (torch.ops.aten.detach, torch.ops.aten.alias):
            return args[0]._copy()
        if torch.Tag.inplace_view in func.tags:
            raise _shape_refusal(func)
        written = _written(func, args, kwargs)
        for lazy in written:
            lazy.own()
        substitute = _hollow if func._schema.name in _SHAPE_ONLY else _real
        result = func(*tree_map(substitute, args), **tree_map(substitute, kwargs))
        for lazy in written:
            lazy._check_own(func)
        owners = {id(lazy._own): lazy for lazy in written}
        return tree_map(lambda value: owners.get(id(value), value), result)

    def _check_own(self, func: Any) -> None:
        if self._own.shape != self.shape or self._own.dtype != self.dtype:
            raise _shape_refusal(func)

    def _copy(self) -> "LazyTensor":
        copy = LazyTensor(tuple(self.shape), self.dtype, self._load)
        copy._own = self._own
        return copy

    # What follows reaches for memory, which torch would answer with a null pointer or not dispatch at all.

    def __setitem__(self, index: Any, value: Any) -> None:
        self.own()[index] = _real(value)

    @property
    def data(self) -> torch.Tensor:
        return self.own().data

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if value.shape != self.shape or value.dtype != self.dtype:
            raise _shape_refusal("data")
        self._own = _real(value)

    def data_ptr(self) -> int:
        return self.own().data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.own().untyped_storage()

    def storage(self) -> Any:
        return self.own().storage()

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
        return self.realize().contiguous(memory_format=memory_format)

    def numpy(self, *, force: bool = False) -> np.ndarray:
        return self.realize().numpy(force=force)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.realize().numpy(), dtype=dtype)

    def tolist(self) -> list:
        return self.realize().tolist()

    def pin_memory(self, *args: Any) -> torch.Tensor:
        return self.realize().pin_memory(*args)

    def share_memory_(self) -> "LazyTensor":
        self.own().share_memory_()
        return self

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.realize().__dlpack__(**kwargs)

    def __deepcopy__(self, memo: dict) -> "LazyTensor":
        copy = self._copy()
        if copy._own is not None:
            copy._own = copy._own.clone()
        memo[id(self)] = copy
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.realize().__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"LazyTensor(shape={tuple(self.shape)}, dtype={self.dtype})"


def realize(structure: Any) -> Any:
    """The same structure with every lazy tensor read into memory; tensors that occur twice stay one tensor."""
    return _realize(structure, {})


def _realize(value: Any, done: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, LazyTensor):
        if id(value) not in done:
            done[id(value)] = value.realize()
        return done[id(value)]
    kind = type(value)
    if kind is dict:
        return {key: _realize(item, done) for key, item in value.items()}
    if kind is list or kind is tuple:
        return kind(_realize(item, done) for item in value)
    codec = None if isinstance(value, torch.Tensor) else codec_for(value)
    return value if codec is None else codec.join(_realize(codec.split(value), done))


def _real(value: Any) -> Any:
    return value.realize() if isinstance(value, LazyTensor) else value


def _hollow(value: Any) -> Any:
    return torch.empty(value.shape, dtype=value.dtype) if isinstance(value, LazyTensor) else value


def _shape_refusal(operation: Any) -> CacheError:
    return CacheError(
        f"{operation}: a lazy tensor cannot change its shape or type in place; call realize() on it first"
    )


def _written(func: Any, args: tuple, kwargs: dict) -> list[LazyTensor]:
    """The lazy tensors that this operation writes into, by its schema."""
    written = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[i] if i < len(args) and not argument.kwarg_only else kwargs.get(argument.name)
        values = value if isinstance(value, list | tuple) else [value]
        written += [v for v in values if isinstance(v, LazyTensor)]
    return written
