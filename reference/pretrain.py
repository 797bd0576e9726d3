"""Pre-training: makes a base model of colored shapes in about a minute, on which an adapter can be trained."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from ..lora_train import Ema, ObjectiveSettings, draw_noise, draw_times, row_losses
from . import images
from .denoiser import SHIFTS
from .encoders import encode_caption, encode_image, latent_scale
from .model import ModelSize, ReferenceModel

# The loss with which each kind of model learns shapes fastest. Most of an eps error is fine detail: min-SNR reduces it.
OBJECTIVES = {
    "flow": ObjectiveSettings(timesteps="logit_normal", shift=SHIFTS["flow"]),
    "eps": ObjectiveSettings(weighting="min_snr", min_snr_gamma=1.0, shift=SHIFTS["eps"]),
    "v": ObjectiveSettings(weighting="min_snr", min_snr_gamma=1.0, shift=SHIFTS["v"]),
}


@dataclass(frozen=True)
class PretrainConfig:
    """Settings of pre-training. The defaults are those of the demo."""

    steps: int = 450
    batch_size: int = 32
    images: int = 1500
    learning_rate: float = 4e-3
    warmup: int = 30
    cooldown: float = 0.3  # share of the steps over which the learning rate falls to zero
    caption_dropout: float = 0.1
    ema_decay: float = 0.99
    seed: int = 0


@dataclass(frozen=True)
class Bucket:
    """Encoded images of one size."""

    latents: Tensor  # [N, C, h, w], scaled
    tokens: Tensor  # [N, T, 64]
    pooled: Tensor  # [N, 64]


def pretrain(
    config: PretrainConfig | None = None,
    size: ModelSize | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> ReferenceModel:
    """Train a model on shapes. `progress` is called with (step, steps, loss)."""
    config = config or PretrainConfig()
    model = ReferenceModel(size, config.seed)
    buckets = encode_shapes(config)
    chooser, generator = random.Random(config.seed), torch.Generator().manual_seed(config.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    average = Ema(model, config.ema_decay)
    for step in range(config.steps):
        bucket = chooser.choices(buckets, [len(bucket.latents) for bucket in buckets])[0]
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * lr_factor(step, config)
        loss = _loss(model, bucket, config, generator)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update()
        if progress:
            progress(step + 1, config.steps, loss.item())
    average.keep()
    return model.requires_grad_(False).eval()


def encode_shapes(config: PretrainConfig) -> list[Bucket]:
    """The training images, by size."""
    by_size: dict[tuple[int, ...], list[tuple[Tensor, Tensor, Tensor]]] = {}
    for image in images.shapes(config.images, config.seed):
        latent = encode_image(torch.from_numpy(numpy.asarray(image.image, dtype=numpy.float32) / 255)) / latent_scale()
        ((tokens, extra),) = encode_caption(image.caption)
        by_size.setdefault(tuple(latent.shape), []).append((latent, tokens, extra["pooled_output"]))
    return [Bucket(*(torch.cat(column) for column in zip(*rows, strict=True))) for rows in by_size.values()]


def lr_factor(step: int, config: PretrainConfig) -> float:
    """Factor of the learning rate at a step: warm-up, constant, then down to zero."""
    left = (config.steps - step) / config.steps
    return min(1.0, (step + 1) / config.warmup, left / config.cooldown)


def _loss(model: ReferenceModel, bucket: Bucket, config: PretrainConfig, generator: torch.Generator) -> Tensor:
    settings = OBJECTIVES[model.size.prediction]
    chosen = torch.randint(len(bucket.latents), (config.batch_size,), generator=generator)
    latents, tokens, pooled = bucket.latents[chosen], bucket.tokens[chosen], bucket.pooled[chosen]
    ((empty, extra),) = encode_caption("")
    dropped = torch.rand(len(chosen), generator=generator) < config.caption_dropout
    tokens = torch.where(dropped[:, None, None], empty, tokens)
    pooled = torch.where(dropped[:, None], extra["pooled_output"], pooled)
    noise = draw_noise(latents, settings, generator)
    t = draw_times(len(latents), model.schedule, settings, generator)
    prediction = model(model.schedule.noisy(latents, noise, t), t, tokens, pooled)
    return row_losses(prediction, model.schedule.target(latents, noise, t), t, model.schedule, settings).mean()
