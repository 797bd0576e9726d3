"""Pre-training: a minute's base model of coloured shapes, on which an adapter can then be trained."""

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

# Scored as a model of each kind learns shapes soonest. Of an eps error, most is fine detail: min-SNR holds it down.
OBJECTIVES = {
    "flow": ObjectiveSettings(timesteps="logit_normal", shift=SHIFTS["flow"]),
    "eps": ObjectiveSettings(weighting="min_snr", min_snr_gamma=1.0, shift=SHIFTS["eps"]),
    "v": ObjectiveSettings(weighting="min_snr", min_snr_gamma=1.0, shift=SHIFTS["v"]),
}


@dataclass(frozen=True)
class Recipe:
    """How the base model is made. The defaults are those of the demo."""

    steps: int = 450
    batch_size: int = 32
    pictures: int = 1500
    learning_rate: float = 4e-3
    warmup: int = 30
    cooldown: float = 0.3  # share of the steps over which the learning rate falls to zero
    caption_dropout: float = 0.1
    ema_decay: float = 0.99
    seed: int = 0


@dataclass(frozen=True)
class Shelf:
    """Encoded pictures of one size."""

    latents: Tensor  # [N, C, h, w], scaled
    tokens: Tensor  # [N, T, 64]
    pooled: Tensor  # [N, 64]


def pretrain(
    recipe: Recipe | None = None,
    size: ModelSize | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> ReferenceModel:
    """Train a model on shapes. `progress` hears (step, steps, loss)."""
    recipe = recipe or Recipe()
    model = ReferenceModel(size, recipe.seed)
    shelves = encode_shapes(recipe)
    chooser, generator = random.Random(recipe.seed), torch.Generator().manual_seed(recipe.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    average = Ema(model, recipe.ema_decay)
    for step in range(recipe.steps):
        shelf = chooser.choices(shelves, [len(shelf.latents) for shelf in shelves])[0]
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * pace(step, recipe)
        loss = _loss(model, shelf, recipe, generator)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update()
        if progress:
            progress(step + 1, recipe.steps, loss.item())
    average.keep()
    return model.requires_grad_(False).eval()


def encode_shapes(recipe: Recipe) -> list[Shelf]:
    """The pictures to learn from, by size."""
    by_size: dict[tuple[int, ...], list[tuple[Tensor, Tensor, Tensor]]] = {}
    for picture in images.shapes(recipe.pictures, recipe.seed):
        latent = (
            encode_image(torch.from_numpy(numpy.asarray(picture.image, dtype=numpy.float32) / 255)) / latent_scale()
        )
        ((tokens, extra),) = encode_caption(picture.caption)
        by_size.setdefault(tuple(latent.shape), []).append((latent, tokens, extra["pooled_output"]))
    return [Shelf(*(torch.cat(column) for column in zip(*rows, strict=True))) for rows in by_size.values()]


def pace(step: int, recipe: Recipe) -> float:
    """The learning rate's share at a step: up, level, down."""
    left = (recipe.steps - step) / recipe.steps
    return min(1.0, (step + 1) / recipe.warmup, left / recipe.cooldown)


def _loss(model: ReferenceModel, shelf: Shelf, recipe: Recipe, generator: torch.Generator) -> Tensor:
    settings = OBJECTIVES[model.size.prediction]
    chosen = torch.randint(len(shelf.latents), (recipe.batch_size,), generator=generator)
    latents, tokens, pooled = shelf.latents[chosen], shelf.tokens[chosen], shelf.pooled[chosen]
    ((nothing, extra),) = encode_caption("")
    dropped = torch.rand(len(chosen), generator=generator) < recipe.caption_dropout
    tokens = torch.where(dropped[:, None, None], nothing, tokens)
    pooled = torch.where(dropped[:, None], extra["pooled_output"], pooled)
    noise = draw_noise(latents, settings, generator)
    t = draw_times(len(latents), model.schedule, settings, generator)
    prediction = model(model.schedule.noisy(latents, noise, t), t, tokens, pooled)
    return row_losses(prediction, model.schedule.target(latents, noise, t), t, model.schedule, settings).mean()
