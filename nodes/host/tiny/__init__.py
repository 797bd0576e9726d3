"""The tiny models that come with the pack, as ComfyUI's own MODEL, CLIP and VAE."""

from .models import FILE, make_clip, new_network, tiny_models, write_weights

__all__ = ["FILE", "make_clip", "new_network", "tiny_models", "write_weights"]
