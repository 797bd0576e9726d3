"""A ComfyUI model as a denoiser."""

from .denoiser import make_denoiser

__all__ = [
    "make_denoiser",
]
