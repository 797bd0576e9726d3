"""The splitter walks one nested value, and takes its tensors and leaves out of it."""

import struct
from typing import Any

import numpy as np
import torch

from ...errors import CacheError
from .lazy import LazyTensor
from .tensors import MAX_AXES, NAMES, codec_for

MAX_DEPTH = 64
# The format of each kind of leaf in the fixed part of a row; variable ones store their length there.
FIXED = {"int": "q", "float": "d", "bool": "?", "bigint": "I", "str": "I", "bytes": "I"}
VARIABLE = {
    "bigint": lambda data: int.from_bytes(data, "little", signed=True),
    "str": lambda data: data.decode("utf-8", "surrogatepass"),
    "bytes": lambda data: data,
}
_MAX_KEY_BITS = 8192  # JSON readers refuse numbers with thousands of digits
NUMPY_TYPES = {"|b1", "|i1", "|u1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"}

_LEAVES = {bool, int, float, str, bytes}

Place = str | tuple  # a path in a structure: (path of its owner, last step); joined for error messages


class _Inside(str):
    """The name of a codec in a path: the next steps are inside the value that it split."""


class Splitter:
    """Walks one structure and collects its tensors and leaves."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._slots: dict[int, int] = {}
        self._codes: list[str] = []
        self._fixed: list[Any] = []
        self._tail: list[bytes] = []

    def pack(self) -> bytes:
        return struct.pack("<" + "".join(self._codes), *self._fixed) + b"".join(self._tail)

    def node(self, value: Any, place: Place, depth: int) -> tuple:
        if depth > MAX_DEPTH:
            raise CacheError(f"{_text(place)}: nested deeper than {MAX_DEPTH} levels (or it contains itself)")
        kind = type(value)
        if kind in _LEAVES:
            return self._leaf(value, kind)
        if kind is dict:
            return "dict", tuple([self._item(k, v, place, depth) for k, v in value.items()])
        if kind is list or kind is tuple:
            return kind.__name__, tuple([self.node(v, (place, i), depth + 1) for i, v in enumerate(value)])
        if value is None:
            return ("none",)
        if isinstance(value, torch.Tensor):
            return "tensor", self._slot(value, place)
        if isinstance(value, np.generic):
            return self._numpy(value, place)
        return self._codec(value, place, depth)

    def _item(self, key: Any, value: Any, place: Place, depth: int) -> tuple:
        if type(key) not in (str, int):
            raise CacheError(
                f"{_text(place)}: a dict key of type {_type_name(key)}; only str and int keys can be stored"
            )
        if type(key) is int and key.bit_length() > _MAX_KEY_BITS:
            raise CacheError(
                f"{_text(place)}: a dict key of {key.bit_length():,} bits; at most {_MAX_KEY_BITS:,} can be stored"
            )
        return key, self.node(value, (place, key), depth + 1)

    def _slot(self, tensor: torch.Tensor, place: Place) -> int:
        slot = self._slots.get(id(tensor))
        if slot is None:
            _check_tensor(tensor, place)
            slot = self._slots[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return slot

    def _leaf(self, value: Any, kind: type) -> tuple:
        if kind is bool:
            return self._put("bool", value)
        if kind is int:
            if -(1 << 63) <= value < 1 << 63:
                return self._put("int", value)
            return self._put("bigint", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        if kind is float:
            return self._put("float", value)
        if kind is str:
            return self._put("str", value.encode("utf-8", "surrogatepass"))
        return self._put("bytes", value)

    def _put(self, kind: str, value: Any) -> tuple:
        self._codes.append(FIXED[kind])
        if kind in VARIABLE:
            self._tail.append(value)
            value = len(value)
        self._fixed.append(value)
        return (kind,)

    def _numpy(self, value: np.generic, place: Place) -> tuple:
        dtype = value.dtype.newbyteorder("<")
        if dtype.str not in NUMPY_TYPES:
            raise _refusal(value, place)
        self._codes.append(f"{dtype.itemsize}s")
        self._fixed.append(value.astype(dtype).tobytes())
        return "numpy", dtype.str

    def _codec(self, value: Any, place: Place, depth: int) -> tuple:
        codec = codec_for(value)
        if codec is None:
            raise _refusal(value, place)
        return "codec", codec.name, self.node(codec.split(value), (place, _Inside(codec.name)), depth + 1)


def _check_tensor(tensor: torch.Tensor, place: Place) -> None:
    if type(tensor) is not torch.Tensor and not isinstance(tensor, LazyTensor):
        raise _refusal(tensor, place)
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        raise CacheError(
            f"{_text(place)}: only plain tensors with values can be stored, this one is {tensor.layout} of "
            f"{tensor.dtype} on {tensor.device}"
        )
    if tensor.dim() > MAX_AXES:
        raise CacheError(f"{_text(place)}: a tensor of {tensor.dim()} axes cannot be stored; the maximum is {MAX_AXES}")
    if tensor.dtype not in NAMES:
        raise CacheError(f"{_text(place)}: tensors of {tensor.dtype} cannot be stored; convert them first")


def _refusal(value: Any, place: Place) -> CacheError:
    return CacheError(
        f"{_text(place)}: a value of type {_type_name(value)} cannot be stored; remove it, or register a codec for it"
    )


def _text(place: Place) -> str:
    if isinstance(place, str):
        return place
    owner, step = place
    return f"{_text(owner)}<{step}>" if isinstance(step, _Inside) else f"{_text(owner)}[{step!r}]"


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
