"""Packing nested state: tensors on one side, a JSON tree on the other. No pickle, so loading runs no code."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

# A container is written as a list whose first item says what it is; a plain value stands for itself.
_TENSOR, _DICT, _LIST, _TUPLE, _FLOAT = "tensor", "dict", "list", "tuple", "float"


def pack(structure: Any) -> tuple[Any, dict[str, Tensor]]:
    """(a tree that JSON can hold, the tensors that it names), on the CPU."""
    tensors: dict[str, Tensor] = {}
    return _pack(structure, "", tensors), tensors


def unpack(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """The structure again, with int keys, tuples and dtypes as they were."""
    if not isinstance(tree, list):
        return tree
    kind, content = tree
    if kind == _TENSOR:
        return tensors[content]
    if kind == _FLOAT:
        return float(content)
    if kind == _DICT:
        return {key: unpack(value, tensors) for key, value in content}
    items = [unpack(value, tensors) for value in content]
    return tuple(items) if kind == _TUPLE else items


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return [_TENSOR, name]
    if isinstance(value, (bool, int, str, type(None))):
        return value
    if isinstance(value, float):
        return _float(float(value))
    if isinstance(value, dict):
        return [_DICT, [[key, _pack(item, _join(name, key), tensors)] for key, item in value.items()]]
    if isinstance(value, (list, tuple)):
        items = [_pack(item, _join(name, index), tensors) for index, item in enumerate(value)]
        return [_TUPLE if isinstance(value, tuple) else _LIST, items]
    raise TypeError(f"{name}: {type(value).__name__} cannot be kept in a saved state")


def _float(value: float) -> Any:
    # JSON has no nan and no infinity; every other float survives it exactly.
    return value if math.isfinite(value) else [_FLOAT, str(value)]


def _join(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)
