"""The host's model as a denoiser."""

from .denoiser import HostDenoiser, make_denoiser
from .previews import PreviewSettings

__all__ = [
    "HostDenoiser",
    "PreviewSettings",
    "make_denoiser",
]
