"""What steps are computed on and with: the device, attention, compiled blocks, and the average of the weights."""

from .attention import ATTENTIONS, attention_kernel, check_attention
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
    "ATTENTIONS",
    "Compiler",
    "Ema",
    "allocated_bytes",
    "attention_kernel",
    "can_pin",
    "check_attention",
    "device_streams",
    "generator_state",
    "is_accelerator",
    "restore_generator",
    "supports_bf16",
    "upload",
]
