"""The tensor types that can be stored, under the names that safetensors gives them."""

import math

import torch

from ..errors import CacheError

MAX_AXES = 64  # what numpy and most operations of torch take
# Names that an older torch does not have are left out, so such a cache says which type it lacks.
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
