"""A pretend accelerator: torch's device "gpu:0", with real values, on which mistakes of device code show.

torch has a device type for other packages (PrivateUse1). Here its tensors carry a tensor of the CPU, on which their
operations run; to torch and to the trainer they are on "gpu:0". As on a GPU,

- an operation on two devices raises;
- copies on a stream happen late: their target is nan until a stream or Python waits for their event, and they read
  their source then, so that a buffer that is filled again too early gives wrong values; an operation on such a stream
  comes after its copies;
- pinned and pageable memory differ.

What a GPU would make Python wait for is written down in `Accelerator.waits`: values that are read (`.item()`,
`bool()`, `.tolist()`, `.cpu()`), results whose size depends on values, and copies from pageable memory.

It cannot be removed from a process again: use it in a process of its own.
"""

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "gpu"
READS = {
    f"aten::{name}"
    for name in (
        "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2", "unique_dim",
        "unique_consecutive", "bincount", "repeat_interleave",
    )
}  # fmt: skip
# New tensors, whose values nothing has read yet: copies go on waiting.
CREATED = {f"aten::{name}" for name in ("empty", "empty_strided", "_to_copy", "detach", "view", "as_strided", "alias")}
# Computed in the lower precision under autocast, as on other devices.
LOWERED = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "conv1d", "conv2d", "conv3d",
           "scaled_dot_product_attention")  # fmt: skip


@dataclass(frozen=True)
class Wait:
    """Something that would make Python wait for the device."""

    what: str
    thread: str
    place: str  # the lines that led to it


@dataclass
class Accelerator:
    """The device as a test sees it."""

    waits: list[Wait] = field(default_factory=list)
    pinned: dict[int, Tensor] = field(default_factory=dict)  # kept, so that no other memory gets their address
    late: int = 0  # copies that happened late
    libraries: list[Any] = field(default_factory=list)

    def note(self, what: str) -> None:
        frames = [(Path(frame.filename).name, frame) for frame in traceback.extract_stack()[-12:]]
        place = " > ".join(f"{name}:{frame.lineno} {frame.name}" for name, frame in frames if name != "accelerator.py")
        self.waits.append(Wait(what, threading.current_thread().name, place))

    def is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.pinned

    def pin(self, tensor: Tensor) -> Tensor:
        self.pinned[tensor.untyped_storage().data_ptr()] = tensor
        return tensor


class Stream:
    """The copies that wait on a stream. `default` is the stream on which everything else runs at once."""

    def __init__(self, device: Any = None) -> None:
        self.copies: list[tuple[Tensor, Tensor]] = []

    def wait_event(self, event: "Event") -> None:
        event.synchronize()


class Event:
    """A place in a stream: after waiting for it, the copies before it have happened."""

    def __init__(self) -> None:
        self._copies: list[tuple[Tensor, Tensor]] = []

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or current_stream()
        self._copies, stream.copies = stream.copies, []

    def synchronize(self) -> None:
        while self._copies:
            target, source = self._copies.pop()
            target.copy_(source)
            ACCELERATOR.late += 1


class DeviceTensor(Tensor):
    """A tensor on "gpu:0"; `values` are on the CPU."""

    values: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor) -> "DeviceTensor":
        made = torch.Tensor._make_wrapper_subclass(
            cls, values.size(), strides=values.stride(), storage_offset=values.storage_offset(), dtype=values.dtype,
            device=f"{NAME}:0",
        )  # fmt: skip
        made.values = values
        return made

    def __repr__(self) -> str:
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"

    def record_stream(self, stream: Stream) -> None: ...

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, dict(kwargs or {}))


ACCELERATOR = Accelerator()
_DEFAULT, _HERE = Stream(), threading.local()


def current_stream(device: Any = None) -> Stream:
    return getattr(_HERE, "stream", _DEFAULT)


@contextmanager
def on_stream(stream: Stream) -> Iterator[None]:
    before, _HERE.stream = current_stream(), stream
    try:
        yield
    finally:
        _HERE.stream = before


def start(streams: bool = True) -> Accelerator:
    """Register the device in this process; without `streams` it has neither streams nor pinned memory, as Apple's."""
    _setup_privateuseone_for_python_backend(NAME)
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # `parameter.data = …` would keep old values
    module: Any = torch.get_device_module(NAME)
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.is_bf16_supported = lambda: True
    module.memory_allocated = lambda device: 12345
    if streams:
        module.Stream, module.Event, module.stream, module.current_stream = Stream, Event, on_stream, current_stream
        _add_pinned_memory()
    aten = torch.library.Library("aten", "IMPL")
    aten.impl("empty.memory_format", _empty, "PrivateUse1")
    aten.impl("empty_strided", _empty_strided, "PrivateUse1")
    aten.impl("_copy_from", lambda source, target, late=False: _copy(target, source, late), "PrivateUse1")
    others = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    others.fallback(torch.library.fallthrough_kernel)
    for name in LOWERED:
        aten.impl(name, _lowering(getattr(torch.ops.aten, name).default), "AutocastPrivateUse1")
    ACCELERATOR.libraries += [aten, others]
    return ACCELERATOR


def _run(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    flat = tree_flatten((args, kwargs))[0]
    own = {id(value.values): value for value in flat if isinstance(value, DeviceTensor)}
    name = func._schema.name
    if name == "aten::copy_":
        return _copy(*args, **kwargs)
    if func._schema.name not in CREATED:
        _catch_up(current_stream())
    _check_devices(name, flat)
    target = kwargs.get("device")
    if target is not None:
        kwargs["device"] = torch.device("cpu")
    if name in READS or (target is not None and torch.device(target).type == "cpu"):
        ACCELERATOR.note(name.removeprefix("aten::"))
    given = tree_map(lambda value: value.values if isinstance(value, DeviceTensor) else value, (args, kwargs))
    out = func(*given[0], **given[1])
    if target is not None and torch.device(target).type == "cpu":
        return out

    def wrapped(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return own[id(value)] if id(value) in own else DeviceTensor(value)  # given: an operation in place

    return tree_map(wrapped, out)


def _catch_up(stream: Stream) -> None:
    """Copies that wait on this stream happen before what follows on it."""
    event = Event()
    event.record(stream)
    event.synchronize()


def _check_devices(name: str, values: list[Any]) -> None:
    """Tensors without axes may be on the CPU, and indices, which are copied."""
    here = [v for v in values if isinstance(v, Tensor) and not isinstance(v, DeviceTensor) and v.ndim]
    if name in ("aten::index", "aten::index_put_", "aten::_index_put_impl_"):
        masks = any(v.dtype is torch.bool for v in values[1:] if isinstance(v, Tensor))
        if here or (masks and name == "aten::index"):
            ACCELERATOR.note("index")
    elif here:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found two devices: {NAME}:0, cpu ({name})"
        )


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if isinstance(target, DeviceTensor) and isinstance(source, DeviceTensor):
        target.values.copy_(source.values)
        return target
    up = isinstance(target, DeviceTensor)
    host = source if up else target
    if not (non_blocking and ACCELERATOR.is_pinned(host)):
        ACCELERATOR.note("copy from pageable memory" if up else "copy to the host")
        (target.values if up else target).copy_(source if up else source.values)
    elif up:
        if target.is_floating_point():
            target.values.fill_(torch.nan)
        current_stream().copies.append((target.values, source))
        if current_stream() is _DEFAULT:  # whatever follows on this stream comes after the copy
            _catch_up(_DEFAULT)
    else:
        current_stream().copies.append((target, source.values.clone()))
    return target


def _empty(size: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    return DeviceTensor(torch.empty(size, dtype=dtype))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    return DeviceTensor(torch.empty_strided(size, stride, dtype=dtype))


def _lowering(operation: Any) -> Callable[..., Any]:
    autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def lower(value: Any) -> Any:
        floats = isinstance(value, Tensor) and value.is_floating_point() and value.dtype is not torch.float64
        return value.to(torch.get_autocast_dtype(NAME)) if floats else value

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            return operation(*tree_map(lower, args), **tree_map(lower, kwargs))

    return kernel


def _add_pinned_memory() -> None:
    empty, own = torch.empty, ACCELERATOR

    def pinning(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        made = empty(*args, **kwargs)
        return own.pin(made) if pin_memory else made

    torch.empty = pinning  # pyright: ignore[reportAttributeAccessIssue]
    Tensor.pin_memory = lambda self, device=None: self if own.is_pinned(self) else own.pin(self.clone())
    Tensor.is_pinned = lambda self, device=None: own.is_pinned(self)
