"""A ComfyUI model as a denoiser."""

from .denoiser import HostDenoiser, make_denoiser

__all__ = [
    "HostDenoiser",
    "make_denoiser",
]
