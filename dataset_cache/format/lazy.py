"""Tensors whose bytes stay on disk until an operation needs their values.

A `LazyTensor` is a `torch.Tensor`: shape, dtype, device and size are known without I/O, and any operation reads the
bytes, uses them and frees them. A view of one (`x[0]`, `x.view(-1)`, `x.detach()`) is lazy too. Writing into one,
or into a view of it (`x += 1`, `x[0] = 5`, `out=x`), turns it and its views into a private copy in memory; the file
never changes. Only `numpy()` differs from an ordinary tensor: it returns a separate array.
"""

import threading
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from ...errors import CacheError
from .tensors import map_tensors

# numpy knows these dtypes; others are viewed as bytes first.
_NUMPY_KNOWS = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64),
}

# These use shape and dtype only, so they get uninitialized memory.
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
# The object itself has no memory: C++ code that asks for its address gets an error, not a null pointer.
_forbid_pointer = getattr(torch._C, "_set_throw_on_mutable_data_ptr", None)
_keeping = threading.Lock()
_CPU = torch.device("cpu")

Load = Callable[[], torch.Tensor]
View = Callable[[torch.Tensor], torch.Tensor]


class _Content:
    """Shared by a lazy tensor and all its views: how to read the values, or the values after a write."""

    __slots__ = ("kept", "load")

    def __init__(self, load: Load | None, kept: torch.Tensor | None = None) -> None:
        self.load, self.kept = load, kept

    def read(self) -> torch.Tensor:
        if self.kept is not None:
            return self.kept
        # An ordinary tensor even if a node runs in inference mode, so that its views work with autograd.
        assert self.load is not None
        with torch.inference_mode(False):
            return self.load()

    def keep(self) -> torch.Tensor:
        with _keeping:  # two threads that write into one tensor must write into the same memory
            if self.kept is None:
                self.kept = self.read()
            return self.kept

    def copy(self) -> "_Content":
        return _Content(self.load, None if self.kept is None else self.kept.clone())


class LazyTensor(torch.Tensor):
    """A tensor that `load` reads on use. `load` returns a new tensor of this shape and dtype on every call."""

    _content: _Content
    _view: View | None  # from the tensor that was read to this one

    # Results of operations are ordinary tensors, so torch must not wrap them in this class again.
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType] - torch's idiom

    @staticmethod
    def __new__(cls, shape: tuple[int, ...], dtype: torch.dtype, load: Load) -> "LazyTensor":
        return _make(cls, {"size": shape, "dtype": dtype}, _Content(load), None)

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def realize(self) -> torch.Tensor:
        """The values, as an ordinary tensor. They are not kept, unless this object was written to before."""
        return self._content.read() if self._view is None else self._view(self._content.read())

    def own(self) -> torch.Tensor:
        """Turn this object and its views into a private copy in memory. Returns this object's part of it."""
        return self._content.keep() if self._view is None else self._view(self._content.keep())

    @property
    def is_real(self) -> bool:
        """Whether the values are in memory because this object was written to."""
        return self._content.kept is not None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.inplace_view in func.tags:
            raise _shape_refusal(func)
        written, is_view, is_composite = _effects(func)
        if is_composite:
            # In inference mode `to` and `reshape` arrive in one piece: only their parts show whether they copy. Torch's
            # C++ kernel divides them; `func.decompose` would prefer decompositions in Python, which round differently.
            return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        if is_view and isinstance(args[0], LazyTensor):
            views = args[0]._views(func, args[1:], kwargs)
            if views is not None:
                return views
        owners = {id(lazy): (lazy, lazy.own()) for lazy in _values_at(written, args)}
        # An `out=` may be resized: it gets separate memory, which is then copied.
        outs = {id(lazy): (lazy, torch.empty(0, dtype=lazy.dtype)) for lazy in _values_at(written, kwargs)}
        real = LazyTensor.realize if func._schema.name not in _SHAPE_ONLY else _hollow
        args = tree_map(partial(_substitute, owners, real), args)
        result = func(*args, **tree_map(partial(_substitute, outs, real), kwargs))
        for lazy, filled in outs.values():
            if filled.shape != lazy.shape:
                raise _shape_refusal(func)
            lazy.own().copy_(filled)
        # If the caller's object was written into, return that object.
        lazies = {id(real): lazy for lazy, real in (*owners.values(), *outs.values())}
        return tree_map(lambda value: lazies.get(id(value), value), result)

    def _views(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """The result of a view operation, as lazy tensors; None for conjugates, which cannot be lazy."""
        hollow = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device="meta")
        shapes = func(hollow, *args, **kwargs)
        if isinstance(shapes, torch.Tensor):
            if shapes.is_conj() or shapes.is_neg():
                return None
            return self._viewed(shapes, lambda t: func(t, *args, **kwargs))
        return [self._viewed(shape, lambda t, n=n: func(t, *args, **kwargs)[n]) for n, shape in enumerate(shapes)]

    def _viewed(self, shape: torch.Tensor, step: View) -> "LazyTensor":
        before = self._view
        view = step if before is None else lambda t: step(before(t))
        return _make(LazyTensor, _form(shape), self._content, view)

    # These need memory; torch would raise an error or not dispatch them at all.

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if value.shape != self.shape or value.dtype != self.dtype:
            raise _shape_refusal("data")
        self._content, self._view = _Content(None, _real(value)), None

    def data_ptr(self) -> int:
        return self.own().data_ptr()

    def const_data_ptr(self) -> int:
        return self.own().const_data_ptr()  # pyright: ignore[reportAttributeAccessIssue] - missing in torch's stubs

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.own().untyped_storage()

    def storage(self) -> Any:
        return self.own().storage()

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
        return self.realize().contiguous(memory_format=memory_format)

    def numpy(self, *, force: bool = False) -> np.ndarray:
        return self.realize().clone().numpy(force=force) if self.is_real else self.realize().numpy(force=force)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.numpy(), dtype=dtype)

    def tolist(self) -> list:
        return self.realize().tolist()

    def apply_(self, callable: Callable) -> "LazyTensor":
        self.own().apply_(callable)
        return self

    def is_shared(self) -> bool:
        return self.is_real and self.own().is_shared()

    def is_pinned(self, device: Any = None) -> bool:
        return self.is_real and self.own().is_pinned(*_given(device))

    def pin_memory(self, device: Any = None) -> torch.Tensor:
        return self.realize().pin_memory(*_given(device))

    def share_memory_(self) -> "LazyTensor":
        self.own().share_memory_()
        return self

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.realize().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return torch.empty(0).__dlpack_device__()

    def __copy__(self) -> torch.Tensor:
        return self.detach().requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo: dict) -> torch.Tensor:
        content = memo.get(id(self._content))
        if content is None:
            content = memo[id(self._content)] = self._content.copy()
        copy = memo[id(self)] = _make(LazyTensor, _form(self), content, self._view)
        return copy.requires_grad_(self.requires_grad)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.realize().__reduce_ex__(protocol)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else super().__format__(spec)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"LazyTensor(shape={tuple(self.shape)}, dtype={self.dtype})"


def realize(structure: Any) -> Any:
    """The same structure with every lazy tensor read into memory; tensors that occur twice stay one tensor."""
    done: dict[int, torch.Tensor] = {}

    def real(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, LazyTensor):
            return tensor
        if id(tensor) not in done:
            done[id(tensor)] = tensor.realize()
        return done[id(tensor)]

    return map_tensors(structure, real)


def _form(tensor: torch.Tensor) -> dict[str, Any]:
    places = {"size": tensor.shape, "strides": tensor.stride(), "storage_offset": tensor.storage_offset()}
    return {**places, "dtype": tensor.dtype}


def _make(cls: type, form: dict[str, Any], content: _Content, view: View | None) -> LazyTensor:
    # Created outside inference mode: the node that loads runs inside it, the node that trains does not.
    with torch.inference_mode(False):
        lazy = torch.Tensor._make_wrapper_subclass(cls, **form, device=_CPU)
    if _forbid_pointer is not None:
        _forbid_pointer(lazy)
    lazy._content, lazy._view = content, view
    return lazy


def _given(device: Any) -> tuple:
    """The arguments to pass on: torch warns about a device, even about None."""
    return () if device is None else (device,)


def _real(value: Any) -> Any:
    return value.realize() if isinstance(value, LazyTensor) else value


def _hollow(lazy: LazyTensor) -> torch.Tensor:
    return torch.empty_strided(lazy.shape, lazy.stride(), dtype=lazy.dtype)


def _substitute(
    owners: dict[int, tuple[LazyTensor, torch.Tensor]], real: Callable[[LazyTensor], torch.Tensor], value: Any
) -> Any:
    if not isinstance(value, LazyTensor):
        return value
    return owners[id(value)][1] if id(value) in owners else real(value)


def _shape_refusal(operation: Any) -> CacheError:
    return CacheError(
        f"{operation}: a lazy tensor cannot change its shape or dtype in place; call realize() on it first"
    )


@lru_cache(None)
def _effects(func: Any) -> tuple[tuple[int | str, ...], bool, bool]:
    """(arguments that an operation writes into, by number or name; whether it only makes views; whether it consists of
    other operations)."""
    arguments = [(i, a) for i, a in enumerate(func._schema.arguments) if a.alias_info is not None]
    written = tuple(a.name if a.kwarg_only else i for i, a in arguments if a.alias_info.is_write)
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    return written, bool(arguments) and not written, is_composite


def _values_at(places: tuple[int | str, ...], arguments: tuple | dict) -> list[LazyTensor]:
    """The lazy tensors among these arguments: by number if they are a tuple, by name if they are a dict."""
    found: list[LazyTensor] = []
    named: dict[Any, Any] = arguments if isinstance(arguments, dict) else dict(enumerate(arguments))
    for place in places:
        if place in named:
            value = named[place]
            found += [v for v in (value if isinstance(value, list | tuple) else [value]) if isinstance(v, LazyTensor)]
    return found


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor, without a copy if its memory is contiguous."""
    if isinstance(tensor, LazyTensor):
        tensor = tensor.realize()
    if tensor.numel() == 0:
        return memoryview(b"")
    if not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        tensor = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype not in _NUMPY_KNOWS:
        tensor = tensor.view(-1).view(torch.uint8)
    return tensor.numpy().data.cast("B")
