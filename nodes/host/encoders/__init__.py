"""The host's VAE and CLIP as encoders."""

from .embeddings import surroundings
from .encoders import image_encoder, text_encoder
from .loaders import NO_FILE, clip_files, clip_names, clip_on_demand, clip_types, vae_names, vae_on_demand
from .models import named_encoders, open_model, open_vae

__all__ = [
    "NO_FILE",
    "clip_files",
    "clip_names",
    "clip_on_demand",
    "clip_types",
    "image_encoder",
    "named_encoders",
    "open_model",
    "open_vae",
    "surroundings",
    "text_encoder",
    "vae_names",
    "vae_on_demand",
]
