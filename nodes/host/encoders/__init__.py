"""ComfyUI's VAE and CLIP as encoders of a dataset, and its models by name."""

from .encoders import image_encoder, surroundings, text_encoder
from .identity import conditioning_identity, model_identity
from .loaders import (
    NO_FILE,
    clip_files,
    clip_names,
    clip_on_demand,
    clip_types,
    named_encoders,
    open_clip,
    open_model,
    open_vae,
    vae_names,
    vae_on_demand,
)

__all__ = [
    "NO_FILE",
    "clip_files",
    "clip_names",
    "clip_on_demand",
    "clip_types",
    "conditioning_identity",
    "image_encoder",
    "model_identity",
    "named_encoders",
    "open_clip",
    "open_model",
    "open_vae",
    "surroundings",
    "text_encoder",
    "vae_names",
    "vae_on_demand",
]
