"""The peak of memory: bytes of all tensors that are alive on a device, with or without data."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ASKS_FOR_DEVICE = torch.ops.prim.device.default


class PeakMemory(TorchDispatchMode):
    """Inside the `with`, follows every tensor that an operation makes. `peak` is the most bytes that lived at once.

    What a kernel allocates for itself is not seen.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._type = device.type
        self.now, self.peak = 0, 0
        self._held: set[int] = set()

    def hold(self, tensors: Iterable[Any]) -> int:
        """Count tensors that exist already, until they are freed; returns their bytes on the device."""
        before = self.now
        for tensor in tensors:
            self._add(tensor)
        return self.now - before

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is ASKS_FOR_DEVICE:  # most calls; autograd asks for each gradient
            return _device(args[0])
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self._add(out)
        else:
            for value in tree_leaves(out):
                self._add(value)
        return out

    def _add(self, value: Any) -> None:
        if not isinstance(value, Tensor) or _device(value).type != self._type:
            return
        if hasattr(value, "__tensor_flatten__"):  # consists of other tensors, as quantized weights do
            names, _ = cast("Any", value).__tensor_flatten__()
            for name in names:
                self._add(getattr(value, name))
            return
        storage = value.untyped_storage()
        key = storage._cdata
        if key in self._held:
            return
        nbytes = storage.nbytes()
        self._held.add(key)
        self.now += nbytes
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, key, nbytes).atexit = False

    def _free(self, key: int, nbytes: int) -> None:
        self._held.discard(key)
        self.now -= nbytes


def _device(tensor: Tensor) -> torch.device:
    """As `tensor.device`, which a tensor without data answers by a slow detour."""
    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
