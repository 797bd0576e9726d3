"""The training objective: the noise and timestep of each row, and the loss of its prediction. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import TrainError
from .denoiser import Denoiser, NoiseSchedule, PreparedBatch

# The SNR is clamped for weightings: beyond this range, 1/√snr would let single rows dominate the batch.
WEIGHTING_SNR = (1e-3, 1e3)

# The version of the rules below and of warmup that new runs follow. A run keeps the version that it began with, so that
# it resumes bit for bit. 1: the first and last noise level were drawn half as often as the others, "debiased" weighted
# v models by √snr / (1 + snr), and warmup began at 1 / (warmup_steps + 1).
RULES = 2

LOSSES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "mse": lambda error, delta: error**2,
    # Pseudo-Huber, scaled to equal MSE for small errors.
    "huber": lambda error, delta: 2 * delta * (torch.sqrt(error**2 + delta**2) - delta),
    "l1": lambda error, delta: error.abs(),
}

# Weights of an error in eps space; `time_weights` converts them for v and flow.
WEIGHTINGS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "none": lambda snr, gamma: torch.ones_like(snr),
    "min_snr": lambda snr, gamma: snr.clamp(max=gamma) / snr,
    "debiased": lambda snr, gamma: snr.rsqrt(),
}

TIMESTEPS = ("uniform", "logit_normal")

# (error in eps space / error in native space)²: eps = x_t·… + c·prediction gives c² = ᾱ for v and (1 - t)² for flow.
EPS_PER_NATIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "eps": torch.ones_like,
    "v": lambda snr: snr / (1 + snr),
    "flow": lambda snr: snr / (1 + snr.sqrt()) ** 2,
}


@dataclass(frozen=True)
class ObjectiveSettings:
    """How noise and timesteps are drawn and the loss is computed. `TrainConfig` validates the values."""

    loss: str = "mse"
    huber_delta: float = 0.1
    weighting: str = "none"
    min_snr_gamma: float = 5.0
    timesteps: str = "uniform"
    logit_mean: float = 0.0
    logit_std: float = 1.0
    shift: float = 1.0
    t_min: float = 0.0
    t_max: float = 1.0
    noise_offset: float = 0.0
    prior_weight: float = 1.0
    masked_loss: bool = False
    unmasked_weight: float = 0.0  # weight of the area outside a mask
    rules: int = RULES


def draw_noise(latents: Tensor, settings: ObjectiveSettings, generator: torch.Generator) -> Tensor:
    """Noise for these latents, drawn on the CPU so that a seed gives the same noise on every device."""
    noise = torch.randn(latents.shape, generator=generator)
    if settings.noise_offset:
        flat = torch.randn(*latents.shape[:2], *[1] * (latents.ndim - 2), generator=generator)
        noise = noise + settings.noise_offset * flat
    return noise.to(latents.device)


def draw_times(count: int, schedule: NoiseSchedule, settings: ObjectiveSettings, generator: torch.Generator) -> Tensor:
    """[count] timesteps on the CPU: drawn, shifted, then scaled to the range t_min to t_max.

    A schedule with a number of `levels` has no timesteps in between; with "uniform", all levels are equally likely.
    """
    if settings.timesteps == "uniform":
        t = torch.rand(count, generator=generator)
    else:
        t = torch.sigmoid(settings.logit_mean + settings.logit_std * torch.randn(count, generator=generator))
    levels = getattr(schedule, "levels", None)
    if levels is not None and levels > 1 and settings.rules > 1:
        return _draw_levels(t, levels, schedule, settings)
    if settings.shift != 1:
        t = schedule.shifted(t, settings.shift)
    return settings.t_min + (settings.t_max - settings.t_min) * t


def _draw_levels(t: Tensor, levels: int, schedule: NoiseSchedule, settings: ObjectiveSettings) -> Tensor:
    """The timesteps of the levels that values in [0, 1) fall into. Rounding would halve the share of both ends."""
    last = levels - 1
    if settings.shift != 1:
        shifted = schedule.shifted(_level(t, 0, last) / last, settings.shift)
        t = ((shifted * last).round() + 0.5) / levels  # the middle of the level's part of [0, 1)
    return (_level(t, round(settings.t_min * last), round(settings.t_max * last)) / last).float()


def _level(t: Tensor, low: int, high: int) -> Tensor:
    return (low + (t.double() * (high - low + 1)).floor()).clamp(low, high)


def evaluate(
    denoiser: Denoiser,
    prepared: PreparedBatch,
    noise: Tensor,
    t: Tensor,
    settings: ObjectiveSettings,
    masks: Sequence[Tensor | None] | None = None,
) -> Tensor:
    """[B] the loss of each row, from one model call."""
    t = t.to(prepared.latents.device)
    x_t = denoiser.schedule.noisy(prepared.latents, noise, t)
    target = denoiser.schedule.target(prepared.latents, noise, t)
    return row_losses(denoiser.predict(x_t, t, prepared.conditioning), target, t, denoiser.schedule, settings, masks)


def row_losses(
    prediction: Tensor,
    target: Tensor,
    t: Tensor,
    schedule: NoiseSchedule,
    settings: ObjectiveSettings,
    masks: Sequence[Tensor | None] | None = None,
) -> Tensor:
    """[B] losses against the native target, in float32, weighted by timestep and mask."""
    # Loss functions broadcast silently; a wrong shape here would train on nonsense.
    assert prediction.shape == target.shape, f"prediction {tuple(prediction.shape)}, target {tuple(target.shape)}"
    cost = LOSSES[settings.loss](prediction.float() - target.float(), settings.huber_delta)
    if settings.masked_loss and masks is not None:
        cost = cost * join_masks(masks, cost, settings.unmasked_weight)
    return cost.flatten(1).mean(1) * time_weights(t, schedule, settings)


def time_weights(t: Tensor, schedule: NoiseSchedule, settings: ObjectiveSettings) -> Tensor:
    """[B] weights of the native error, so that the objective is the same for eps, v and flow models."""
    if settings.weighting == "none":
        return torch.ones_like(t)
    snr = schedule.snr(t).clamp(*WEIGHTING_SNR)
    if settings.weighting == "debiased" and schedule.prediction == "v" and settings.rules > 1:
        return 1 / (1 + snr)  # as in kohya's scripts; the rule for eps and flow would give √snr / (1 + snr)
    return WEIGHTINGS[settings.weighting](snr, settings.min_snr_gamma) * EPS_PER_NATIVE[schedule.prediction](snr)


def row_weights(weights: Tensor, prior: Tensor, settings: ObjectiveSettings) -> Tensor:
    """[B] the samples' own weights, times the prior weight for rows of a prior set."""
    return weights.float() * torch.where(prior, settings.prior_weight, 1.0)


def mean_loss(losses: Tensor, weights: Tensor | None = None) -> Tensor:
    """The batch's loss: divided by the number of rows, so that a weight of 0.5 halves the loss of a single row too."""
    return losses.mean() if weights is None else (losses * weights.to(losses.device)).mean()


def join_masks(masks: Sequence[Tensor | None], like: Tensor, floor: float = 0.0) -> Tensor:
    """Masks of any resolution → [B, 1, (T or 1,) H, W] at the latents' size; a row without a mask counts fully."""
    if len(masks) != len(like):
        raise TrainError(f"masks: found {len(masks)} for a batch of {len(like)} rows; expected one per row, or None")
    joined = torch.stack([_mask(mask, like, row) for row, mask in enumerate(masks)])
    return joined.clamp(0, 1) * (1 - floor) + floor


def _mask(mask: Tensor | None, like: Tensor, row: int) -> Tensor:
    frames = 1 if like.ndim == 4 else like.shape[2]
    size = tuple(like.shape[-2:])
    if mask is None:
        return like.new_ones(1, *([frames] if like.ndim == 5 else []), *size)
    planes = mask.to(like.device, torch.float32).reshape(-1, *mask.shape[-2:])
    if len(planes) not in (1, frames):
        raise TrainError(f"mask of row {row}: found {len(planes)} planes, expected 1 or the latent's {frames}")
    planes = F.interpolate(planes[:, None], size, mode="area")[:, 0]
    return planes.expand(frames, *size)[None] if like.ndim == 5 else planes
