"""A GPU's rules of autocast on another device, so that a machine without one can tell what it keeps in fp32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

# What a GPU computes in the lower precision or in the widest of its arguments' types; the rest of its rules are fp32.
NOT_IN_FP32 = {
    "_convolution", "_cudnn_rnn", "_scaled_dot_product_flash_attention", "_thnn_fused_gru_cell",
    "_thnn_fused_lstm_cell", "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "chain_matmul", "conv1d", "conv2d",
    "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
    "cudnn_convolution", "cudnn_convolution_transpose", "einsum", "gru_cell", "linalg_multi_dot", "linalg_vecdot",
    "linear", "lstm_cell", "matmul", "mm", "mv", "prelu", "rnn_relu_cell", "rnn_tanh_cell",
    "scaled_dot_product_attention",
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sampler", "index_put", "scatter_add", "tensordot",
    "vdot",
}  # fmt: skip


@contextmanager
def gpu_rules(backend: str) -> Iterator[None]:
    """Inside the `with`, autocast of "CPU" or "PrivateUse1" keeps in fp32 what this torch's autocast of CUDA does.

    Applies to all threads. Operations that have a rule there already keep it: the same one.
    """
    key, rules = f"Autocast{backend}", torch._C._dispatch_get_registrations_for_dispatch_key
    own = set(rules(key))
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name in rules("AutocastCUDA"):
            package, _, operation = name.partition("::")
            base, _, overload = operation.partition(".")
            if package == "aten" and base not in NOT_IN_FP32 and name not in own:
                found = getattr(getattr(torch.ops.aten, base), overload or "default")
                library.impl(operation, _in_fp32(found, key), key)
        yield


def _in_fp32(operation: Any, key: str) -> Callable[..., Any]:
    own = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def widen(value: Any) -> Any:
        low = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
        return value.float() if low else value

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(own):
            return operation(*tree_map(widen, args), **tree_map(widen, kwargs))

    return kernel
