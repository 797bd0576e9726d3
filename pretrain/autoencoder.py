"""The tiny autoencoder: TAESD with fewer and narrower layers than in ComfyUI.

Its latents are the mean colors of tiles of 8×8 pixels. The decoder learns to draw the edges between them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from comfy.taesd.taesd import TAESD, Block
from torch import Tensor, nn

from .pictures import patches

WIDTH = 32  # of ComfyUI's 64
SIDE = 64  # pixels of a patch
STEPS, BATCH, RATE = 900, 6, 2e-3
CONTRAST = 3.5  # of latents to colors: their variance is then about 1
NOISE = 0.3  # on latents, at most, so that the decoder forgives small errors of the model
Say = Callable[[str, int, int, float], None]


def train_autoencoder(say: Say, steps: int = STEPS) -> nn.Module:
    """The autoencoder, with a trained decoder."""
    torch.manual_seed(0)
    model = new_autoencoder()
    decoder = model.taesd_decoder.requires_grad_(True)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=RATE, weight_decay=0)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps, pct_start=0.1)
    draw = random.Random(0)
    for step in range(steps):
        loss = _loss(model, patches(BATCH, SIDE, draw))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        rates.step()
        say("Autoencoder", step + 1, steps, loss.item())
    return model.requires_grad_(False)


@torch.no_grad()
def new_autoencoder() -> nn.Module:
    """Fewer channels, and one block per resolution. It begins by repeating the color of a tile."""
    model = TAESD(latent_channels=4)
    for part in (model.taesd_encoder, model.taesd_decoder):
        before = None
        for name, layer in list(part.named_children()):
            setattr(part, name, _smaller(layer, before))
            before = layer
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    for layer in model.taesd_decoder:
        if isinstance(layer, Block):
            nn.init.normal_(layer.conv[4].weight, std=0.01)  # a block starts close to the identity
    _pass_tiles(model)
    return model.requires_grad_(False)


def _smaller(layer: nn.Module, before: nn.Module | None) -> nn.Module:
    if isinstance(layer, Block):
        # A block of zeros passes on what a block before it returned.
        return nn.Identity() if isinstance(before, Block) else Block(WIDTH, WIDTH)
    if isinstance(layer, nn.Conv2d):
        channels = [WIDTH if count == 64 else count for count in (layer.in_channels, layer.out_channels)]
        return nn.Conv2d(*channels, 3, padding=1, stride=layer.stride, bias=layer.bias is not None)
    return layer


def _pass_tiles(model: nn.Module) -> None:
    """Three channels of all layers pass the colors of tiles. The encoder has no others; the decoder learns them."""
    encoder = [layer for layer in model.taesd_encoder if isinstance(layer, nn.Conv2d)]
    decoder = [layer for layer in model.taesd_decoder if isinstance(layer, nn.Conv2d)]
    for weight in model.taesd_encoder.parameters():
        weight.zero_()
    for layer in encoder + decoder:
        layer.weight[:3] = 0
        for color in range(3):
            if layer.stride == (2, 2):
                layer.weight[color, color, 1:, 1:] = 0.25
            else:
                layer.weight[color, color, 1, 1] = 1
    encoder[-1].weight[:3] *= CONTRAST
    encoder[-1].bias[:3] = -CONTRAST / 2
    decoder[0].weight[:3] /= CONTRAST
    decoder[0].bias[:3] = 0.5


def tile_latents(images: Tensor) -> Tensor:
    """[N, 3, H, W] in 0…1 → [N, 4, H/8, W/8]: what the encoder returns, computed faster."""
    colors = CONTRAST * (nn.functional.avg_pool2d(images, 8) - 0.5)
    return nn.functional.pad(colors, (0, 0, 0, 0, 0, 1))


def _loss(model: nn.Module, images: Tensor) -> Tensor:
    latents = tile_latents(images)
    apart = model.taesd_decoder(latents + NOISE * torch.rand(len(images), 1, 1, 1) * torch.randn_like(latents)) - images
    return apart.abs().mean() + apart.square().mean()
