"""The tiny model: learns to draw the pictures from their captions, by flow matching."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .autoencoder import tile_latents
from .pictures import pictures, to_tensor

COUNT = 1600  # pictures
STEPS, BATCH, RATE = 1600, 8, 2e-3
DROPPED = 0.1  # share of captions that are left out, for guidance
AVERAGED = 0.99
KEPT = 100  # steps after which the weights are kept
SHIFT = 3.0  # of ComfyUI's SD3
Say = Callable[[str, int, int, float], None]
Keep = Callable[[dict[str, Tensor]], None]


@dataclass(frozen=True)
class Bucket:
    """Encoded pictures of one size."""

    latents: Tensor  # [N, 4, h, w]
    texts: Tensor  # [N, tokens, width]
    pooled: Tensor  # [N, width]


def encode_pictures(encode_text: Callable[[str], tuple[Tensor, Tensor]], say: Say) -> list[Bucket]:
    """The pictures by size, with their captions."""
    found: dict[tuple[int, ...], list[tuple[Tensor, Tensor, Tensor]]] = {}
    for number, picture in enumerate(pictures(COUNT, seed=0)):
        row = tile_latents(to_tensor(picture.image)[None]), *encode_text(picture.caption)
        found.setdefault(tuple(row[0].shape), []).append(row)
        say("Pictures", number + 1, COUNT, 0.0)
    return [Bucket(*(torch.cat(column) for column in zip(*rows, strict=True))) for rows in found.values()]


def train_model(
    model: nn.Module, buckets: list[Bucket], empty: tuple[Tensor, Tensor], say: Say, keep: Keep, steps: int = STEPS
) -> None:
    """Trains the weights in place. `keep` gets them now and then."""
    initialize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50, 3 * (1 - step / steps)))
    average = {name: value.detach().clone() for name, value in model.named_parameters()}
    chooser, generator = random.Random(0), torch.Generator().manual_seed(0)
    for step in range(steps):
        bucket = chooser.choices(buckets, [len(bucket.latents) for bucket in buckets])[0]
        loss = _loss(model, bucket, empty, generator)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
        with torch.no_grad():
            kept = min(AVERAGED, step / (step + 10))
            for name, value in model.named_parameters():
                average[name].lerp_(value, 1 - kept)
        say("Model", step + 1, steps, loss.item())
        if step % KEPT == KEPT - 1:
            keep({**model.state_dict(), **average})
    model.load_state_dict(average, strict=False)
    model.requires_grad_(False).eval()


def initialize(model: nn.Module) -> None:
    """As usual for diffusion transformers: every block starts as the identity."""
    torch.manual_seed(0)
    for name, value in model.named_parameters():
        value.requires_grad_(True)
        with torch.no_grad():
            if value.ndim == 1 or "adaLN" in name or "final_layer.linear" in name:
                value.zero_()
            else:
                value.normal_(std=math.prod(value.shape[1:]) ** -0.5)


def _loss(model: nn.Module, bucket: Bucket, empty: tuple[Tensor, Tensor], generator: torch.Generator) -> Tensor:
    chosen = torch.randint(len(bucket.latents), (BATCH,), generator=generator)
    dropped = torch.rand(BATCH, generator=generator) < DROPPED
    texts = torch.where(dropped[:, None, None], empty[0], bucket.texts[chosen])
    pooled = torch.where(dropped[:, None], empty[1], bucket.pooled[chosen])
    latents = bucket.latents[chosen]
    noise = torch.randn(latents.shape, generator=generator)
    t = torch.randn(BATCH, generator=generator).sigmoid()
    sigma = SHIFT * t / (1 + (SHIFT - 1) * t)
    rows = sigma[:, None, None, None]
    predicted = model((1 - rows) * latents + rows * noise, sigma * 1000, context=texts, y=pooled)
    return (predicted - (noise - latents)).square().mean()
