"""The reference model: a small text-to-image model in plain torch, to try and to test everything on a CPU."""

from .denoiser import ReferenceDenoiser
from .encoders import ReferenceImageEncoder, ReferenceTextEncoder, decode_images
from .model import load_model
from .painter import ReferencePainter

__all__ = [
    "ReferenceDenoiser",
    "ReferenceImageEncoder",
    "ReferencePainter",
    "ReferenceTextEncoder",
    "decode_images",
    "load_model",
]
