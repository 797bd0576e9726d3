"""Torch's attention kernels as a choice: one that cannot be used is refused in a sentence, not replaced by another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...errors import TrainError

ATTENTIONS: dict[str, SDPBackend | None] = {
    "auto": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
_REFUSED = re.compile("No (available kernel|viable backend)")  # as torch says it for GPUs and for the CPU


@contextmanager
def attention_kernel(name: str) -> Iterator[None]:
    """Inside the `with`, torch's attention uses this kernel only. Calls that it cannot compute are refused."""
    kernel = ATTENTIONS[name]
    if kernel is None:
        yield
        return
    try:
        with sdpa_kernel(kernel):
            yield
    except RuntimeError as error:
        if not _REFUSED.search(str(error)):
            raise
        raise TrainError(
            f"attention = {name}: it cannot compute the attention of this model, because of a mask, the size of its "
            "heads or the precision; choose another one, or auto"
        ) from None


def check_attention(name: str, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse a kernel that this device does not have for this dtype. It computes one small attention."""
    if ATTENTIONS[name] is None:
        return
    query = torch.zeros(1, 1, 16, 64, device=device, dtype=dtype, requires_grad=True)
    if not _works(name, query):
        usable = [other for other, kernel in ATTENTIONS.items() if kernel is None or _works(other, query)]
        raise TrainError(
            f"attention = {name}: not available on {device} in {str(dtype).removeprefix('torch.')}; "
            f"expected one of {', '.join(usable)}"
        )


def _works(name: str, query: torch.Tensor) -> bool:
    try:
        with attention_kernel(name):
            F.scaled_dot_product_attention(query, query, query).sum().backward()
    except (TrainError, RuntimeError):
        return False
    return True
