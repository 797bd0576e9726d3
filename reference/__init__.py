"""The reference model: a small text-to-image model in plain torch, to try and to test everything on a CPU."""

from .denoiser import ReferenceDenoiser
from .encoders import ReferenceImageEncoder, ReferenceTextEncoder
from .model import load_model
from .vae import decode_pictures

__all__ = [
    "ReferenceDenoiser",
    "ReferenceImageEncoder",
    "ReferenceTextEncoder",
    "decode_pictures",
    "load_model",
]
