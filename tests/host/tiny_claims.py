"""Inside ComfyUI: what Tiny Models outputs, and what it draws."""

from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image

from streamcache.reference.images import COLORS, SHAPES

CAPTIONS = ("a red circle on green", "a yellow square on blue", "a white star on purple")
PICTURES = 4  # per caption; the colors are those of most of them


def run(base: Path) -> dict[str, Any]:
    from streamcache.nodes.host.encoders import image_encoder, text_encoder
    from streamcache.nodes.loaders import StreamCacheTinyModels

    twice = [StreamCacheTinyModels.execute().args for _ in range(2)]
    model, clip, vae = twice[0]
    image = example()
    latent = vae.encode(image[None])
    return {
        "classes": [type(one).__name__ for one in (model, clip, vae)],
        "identities": [[image_encoder(vae).identity, text_encoder(clip).identity] for _, clip, vae in twice],
        "latent": list(latent.shape),
        "error": float((vae.decode(latent)[0] - image).abs().mean()),
        "drawn": {caption: colors_of(draw(model, clip, vae, caption)) for caption in CAPTIONS},
    }


def example() -> torch.Tensor:
    """[128, 128, 3] in 0…1."""
    from PIL import ImageDraw

    image = Image.new("RGB", (128, 128), COLORS["blue"])
    SHAPES["star"](ImageDraw.Draw(image), 60, 66, 44, COLORS["red"])
    return torch.from_numpy(numpy.asarray(image, dtype=numpy.float32) / 255)


def draw(model: Any, clip: Any, vae: Any, caption: str) -> torch.Tensor:
    """[pictures, 128, 128, 3], with the nodes that users have."""
    import nodes as host_nodes

    texts = [host_nodes.CLIPTextEncode().encode(clip, text)[0] for text in (caption, "")]
    (latents,) = host_nodes.EmptyLatentImage().generate(128, 128, PICTURES)
    (drawn,) = host_nodes.KSampler().sample(model, 1, 20, 3.0, "euler", "simple", *texts, latents)
    return host_nodes.VAEDecode().decode(vae, drawn)[0]


def colors_of(pictures: torch.Tensor) -> dict[str, str]:
    middle = pictures[:, 56:72, 56:72].flatten(1, 2)
    corners = torch.cat([pictures[:, :8, :8], pictures[:, -8:, -8:]], 1).flatten(1, 2)
    return {"middle": nearest(middle), "corners": nearest(corners)}


def nearest(pixels: torch.Tensor) -> str:
    """The color of the pixels by their median over the pictures."""
    color = pixels.median(1).values.median(0).values * 255
    return min(COLORS, key=lambda name: float((color - torch.tensor(COLORS[name])).norm()))
