"""Tensors and the structures around them: dtypes by their safetensors names, codecs for further types, and walkers."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import CacheError

MAX_AXES = 64  # what numpy and most operations of torch take
_MAX_TENSOR_BYTES = 1 << 40  # an offset in a shard has 40 bits
# dtypes that an older torch lacks are skipped, so a cache that needs one names it in an error.
_TORCH_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "I32": "int32",
    "U32": "uint32",
    "I64": "int64",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn_x2",
}
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, t) for name, t in _TORCH_NAMES.items() if hasattr(torch, t)}
NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}


def dtype_named(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise CacheError(f"tensor type {name!r} is not known to torch {torch.__version__}; a newer torch may have it")
    return DTYPES[name]


def count_bytes(name: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * dtype_named(name).itemsize


@dataclass(frozen=True)
class TensorSpec:
    """What a layout defines about a tensor."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    strides: tuple[int, ...] = ()  # of the tensor in memory, in elements


def read_spec(spec: list) -> TensorSpec:
    """The type and shape of a tensor from a stored layout."""
    dtype, shape = spec[0], tuple(spec[1])
    # Other axes count even if one is zero: torch computes strides from them.
    if any(type(n) is not int or n < 0 for n in shape) or len(shape) > MAX_AXES or _extent(shape) >= 1 << 60:
        raise CacheError(f"a stored layout has a tensor of shape {str(shape)[:200]}")
    nbytes = count_bytes(dtype, shape)
    if nbytes > _MAX_TENSOR_BYTES:
        raise CacheError(f"a stored layout has a tensor of {nbytes:,} bytes, too large for a shard")
    return TensorSpec(dtype, shape, nbytes, _strides_of(shape))


def _strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _extent(shape: tuple[int, ...]) -> int:
    return math.prod(max(n, 1) for n in shape)


@dataclass(frozen=True)
class Codec:
    """A type beyond the built-in ones that may be stored.

    `split` turns a value of `type` into a plain structure, `join` turns that structure back into the value. The cache
    stores the name, so it must never change. `join` may be given lazy tensors.
    """

    name: str
    type: type
    split: Callable[[Any], Any]
    join: Callable[[Any], Any]


_by_name: dict[str, Codec] = {}
_by_type: dict[type, Codec] = {}


def register_codec(codec: Codec) -> None:
    """Make `codec` known to every writer and reader of this process. Registering a name again replaces it."""
    _by_name[codec.name] = codec
    _by_type[codec.type] = codec


def codec_for(value: Any) -> Codec | None:
    return _by_type.get(type(value))


def codec_named(name: str) -> Codec | None:
    return _by_name.get(name)


def map_tensors(structure: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same nesting of dicts, lists, tuples and codec types with every tensor changed, from left to right."""
    if isinstance(structure, torch.Tensor):
        return change(structure)
    if isinstance(structure, dict):
        return {key: map_tensors(value, change) for key, value in structure.items()}
    if isinstance(structure, list | tuple):
        return type(structure)([map_tensors(value, change) for value in structure])
    codec = codec_for(structure)
    return structure if codec is None else codec.join(map_tensors(codec.split(structure), change))


def iter_tensors(structure: Any) -> Iterator[torch.Tensor]:
    """Every tensor in a nesting of dicts, lists, tuples and codec types, from left to right."""
    if isinstance(structure, torch.Tensor):
        yield structure
    elif isinstance(structure, dict | list | tuple):
        for value in structure.values() if isinstance(structure, dict) else structure:
            yield from iter_tensors(value)
    elif (codec := codec_for(structure)) is not None:
        yield from iter_tensors(codec.split(structure))
