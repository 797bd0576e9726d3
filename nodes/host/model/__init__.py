"""A ComfyUI model as a denoiser and as the painter of a grid, and what is known about it before it is loaded."""

from .denoiser import make_denoiser
from .family import families_of
from .painter import HostPainter
from .tracing import device_memory

__all__ = [
    "HostPainter",
    "device_memory",
    "families_of",
    "make_denoiser",
]
