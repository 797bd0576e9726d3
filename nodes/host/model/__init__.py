"""A ComfyUI model as a denoiser, and as the painter of a grid."""

from .denoiser import make_denoiser
from .painter import HostPainter

__all__ = [
    "HostPainter",
    "make_denoiser",
]
