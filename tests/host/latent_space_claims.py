"""Scenario: latents of other trainers, scaled as ComfyUI's own latent formats scale them."""

from pathlib import Path

import torch

from .claims import claim, hold

FORMATS = {
    "SD1": "SD15",
    "SDXL": "SDXL",
    "SD3": "SD3",
    "FLUX": "Flux",
    "FLUX2": "Flux2",
    "WAN21": "Wan21",
    "HUNYUAN_VIDEO": "HunyuanVideo",
    "HUNYUAN_VIDEO_15": "HunyuanVideo15",
    "HUNYUAN_IMAGE": "HunyuanImage21",
}


def run(base: Path) -> dict:
    return {name: hold("latent_space_claims", globals(), name) for name in FORMATS}


@claim
def f9_scaling_is_undone_as_comfyui_does_it(name: str) -> None:
    from comfy import latent_formats

    from streamcache.dataset_cache.foreign import latent_space

    space, known = getattr(latent_space, name), getattr(latent_formats, FORMATS[name])()
    assert (space.channels, space.frames) == (known.latent_channels, known.latent_dimensions == 3)
    raw = torch.randn(1, space.channels, *((2, 4, 4) if space.frames else (4, 4)))
    assert torch.allclose(space.latent(known.process_in(raw)[0], True), raw, atol=1e-5)
