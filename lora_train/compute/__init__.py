"""What steps are computed on and with: the device, compiled blocks, and the average of the weights."""

from .compiled import Compiler
from .device import (
    allocated_bytes,
    can_pin,
    device_streams,
    generator_state,
    is_accelerator,
    restore_generator,
    supports_bf16,
    upload,
)
from .ema import Ema

__all__ = [
    "Compiler",
    "Ema",
    "allocated_bytes",
    "can_pin",
    "device_streams",
    "generator_state",
    "is_accelerator",
    "restore_generator",
    "supports_bf16",
    "upload",
]
