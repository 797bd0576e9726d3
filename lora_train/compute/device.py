"""The device that a run trains on: streams, pinned memory, generators and memory in use, on any accelerator of torch.

torch has a module per type of accelerator: `torch.cuda` (NVIDIA and AMD), `torch.xpu` (Intel), `torch.mps` (Apple), or
one that another package registers. They have the same functions, as far as the device has the thing at all: Apple's has
no streams. Nothing here asks for a vendor where it can ask for the function.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

_STREAMS = ("Stream", "Event", "stream", "current_stream")


def is_accelerator(device: torch.device) -> bool:
    """Whether tensors have to be copied to this device, and work on it runs beside Python."""
    return device.type not in ("cpu", "meta")


def device_module(device: torch.device) -> Any:
    """torch's module for this type of device; None for the CPU."""
    return getattr(torch, device.type, None) if is_accelerator(device) else None


def device_streams(device: torch.device) -> Any:
    """The module with `Stream`, `Event`, `stream` and `current_stream` of this device; None if it has no streams."""
    module = device_module(device)
    return module if all(hasattr(module, name) for name in _STREAMS) else None


@cache
def can_pin(device: torch.device) -> bool:
    """Whether copies from pinned memory to this device run beside other work; others make Python wait."""
    if device_streams(device) is None:
        return False
    try:
        return torch.empty(1, pin_memory=True).is_pinned()
    except RuntimeError:  # the device has no such memory
        return False


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """A small tensor on the device, without waiting for work that is queued there.

    torch keeps the pinned copy until the device has read it.
    """
    if tensor.device == device or not can_pin(device):
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def supports_bf16(device: torch.device) -> bool:
    """Whether the device says that it computes in bfloat16."""
    asked = getattr(device_module(device), "is_bf16_supported", None)
    return asked is not None and bool(asked())


def allocated_bytes(device: torch.device) -> int | None:
    """Bytes of tensors on the device; None if it does not tell, as the CPU."""
    module = device_module(device)
    if hasattr(module, "memory_allocated"):
        return module.memory_allocated(device)
    asked = getattr(module, "current_allocated_memory", None)  # Apple
    return None if asked is None else asked()


def generator_state(device: torch.device) -> Tensor | None:
    """The state of the device's global generator; None if it has none of its own."""
    asked = getattr(device_module(device), "get_rng_state", None)
    if asked is None:
        return None
    return asked() if device.type == "mps" else asked(device)


def restore_generator(device: torch.device, state: Tensor | None) -> None:
    """Set the device's global generator to a state from before."""
    if state is None:
        return
    restore = device_module(device).set_rng_state
    restore(state) if device.type == "mps" else restore(state, device)
