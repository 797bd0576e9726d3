"""The two model families of these tests, loaded by ComfyUI's own nodes, and a small dataset encoded with them."""

from dataclasses import dataclass
from typing import Any

import torch

from .tiny_models import EPS_MODEL, FLOW_MODEL, TEXT_ENCODER


@dataclass(frozen=True)
class Family:
    """File and option names for ComfyUI's loader nodes."""

    model: str
    vae: str
    clip_type: str


@dataclass(frozen=True)
class Loaded:
    """One family's models, as the loader nodes return them."""

    model: Any
    vae: Any
    clip: Any


FAMILIES = {
    "flow": Family(FLOW_MODEL, "taesd3", "sd3"),
    "eps": Family(EPS_MODEL, "taesd", "stable_diffusion"),
}
CAPTIONS = ("a cat on a wall", "a dog", "")
SIZES = ((64, 64), (64, 64), (64, 96))  # two of one shape, one of another


def load(name: str) -> Loaded:
    family = FAMILIES[name]
    (model,) = call("UNETLoader", unet_name=family.model, weight_dtype="default")
    (vae,) = call("VAELoader", vae_name=family.vae)
    (clip,) = call("CLIPLoader", clip_name=TEXT_ENCODER, type=family.clip_type)
    return Loaded(model, vae, clip)


def encode(loaded: Loaded) -> tuple[list[dict], list[list]]:
    """Latents and conditionings from core's own nodes, one per size and caption."""
    generator = torch.Generator().manual_seed(11)
    images = [torch.rand(1, *size, 3, generator=generator) for size in SIZES]
    latents = [call("VAEEncode", vae=loaded.vae, pixels=image)[0] for image in images]
    return latents, [call("CLIPTextEncode", clip=loaded.clip, text=caption)[0] for caption in CAPTIONS]


def call(node_id: str, **inputs: Any) -> Any:
    """The result of a stock node: a tuple of outputs, or a dict with `ui` if it has none."""
    import nodes

    node = nodes.NODE_CLASS_MAPPINGS[node_id]
    if hasattr(node, "execute"):
        return node.execute(**inputs).args
    return getattr(node(), node.FUNCTION)(**inputs)
