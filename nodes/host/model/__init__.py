"""A ComfyUI model as a denoiser, and what is known about it before it is loaded."""

from .denoiser import make_denoiser
from .family import device_memory, families_of

__all__ = [
    "device_memory",
    "families_of",
    "make_denoiser",
]
