"""The loss of a prediction: row by row, weighted by timestep, mask and sample. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import TrainError
from ..compute import upload
from ..denoiser import Denoiser, NoiseSchedule, PreparedBatch
from .noise_schedule import per_row
from .settings import ObjectiveSettings

# The SNR is clamped for weightings: beyond this range, 1/√snr would let single rows dominate the batch.
WEIGHTING_SNR = (1e-3, 1e3)
MASK_AREA = 1e-3  # masks of a smaller share count as this: single pixels would dominate the batch

LOSSES: dict[str, Callable[[Tensor, Tensor | float], Tensor]] = {
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

# (error in eps space / error in native space)²: eps = x_t·… + c·prediction gives c² = ᾱ for v and (1 - t)² for flow.
EPS_PER_NATIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "eps": torch.ones_like,
    "v": lambda snr: snr / (1 + snr),
    "flow": lambda snr: snr / (1 + snr.sqrt()) ** 2,
}


def evaluate(
    denoiser: Denoiser,
    prepared: PreparedBatch,
    noise: Tensor,
    t: Tensor,
    settings: ObjectiveSettings,
    masks: Sequence[Tensor | None] | None = None,
    perturbation: Tensor | None = None,
    without_caption: Any = None,
) -> Tensor:
    """[B] the loss of each row, from one model call.

    `perturbation` is noise for `input_perturbation`, and `without_caption` the conditioning of the empty caption for
    `guidance_target`, which needs a second model call; without them the two settings have no effect.
    """
    noise, t = upload(noise, prepared.latents.device), upload(t, prepared.latents.device)
    x_t = noisy_input(denoiser, prepared, noise, t, settings, perturbation)
    target = denoiser.schedule.target(prepared.latents, noise, t)
    if without_caption is not None and settings.guidance_target != 1:
        with torch.no_grad():
            target = guided(target, denoiser.predict(x_t, t, without_caption), t, denoiser.schedule, settings)
    return row_losses(denoiser.predict(x_t, t, prepared.conditioning), target, t, denoiser.schedule, settings, masks)


def noisy_input(
    denoiser: Denoiser,
    prepared: PreparedBatch,
    noise: Tensor,
    t: Tensor,
    settings: ObjectiveSettings,
    perturbation: Tensor | None = None,
) -> Tensor:
    """What the model sees. Input perturbation mixes in noise + γ · other noise, while the target has the noise alone.

    As in kohya's scripts (`ip_noise_gamma`) and arXiv 2301.11706.
    """
    if perturbation is not None:
        noise = noise + settings.input_perturbation * upload(perturbation, noise.device)
    return denoiser.schedule.noisy(prepared.latents, noise, t)


def guided(
    target: Tensor, without_caption: Tensor, t: Tensor, schedule: NoiseSchedule, settings: ObjectiveSettings
) -> Tensor:
    """without + s · (target - without): the prediction that classifier-free guidance of scale s would make of a target.

    `without_caption` is the model's own prediction for the empty caption. It is ai-toolkit's guidance loss; the
    CFG-augmented training of diffusion-pipe has the same target with a loss that is divided by s². The schedule "sigma"
    is 1 + (s - 1) · σ: near the image the difference is mostly noise that no model can predict.
    """
    scale: Tensor | float = settings.guidance_target
    if settings.guidance_schedule == "sigma":
        sigma = 1 / (1 + schedule.snr(t).sqrt())  # t itself for flow models
        scale = per_row(1 + (settings.guidance_target - 1) * sigma, target)
    without = without_caption.to(target.dtype)
    return without + scale * (target - without)


def huber_deltas(t: Tensor, schedule: NoiseSchedule, settings: ObjectiveSettings) -> Tensor | float:
    """[B] the delta at each timestep, as `get_huber_threshold_if_needed` of kohya's scripts.

    "exponential": delta^(timestep / number of timesteps), from 1 without noise to delta. "snr": (1 - delta) / (1 + σ)²
    + delta, with σ = 1 / √snr, from 1 to delta.
    """
    delta = settings.huber_delta
    if settings.loss != "huber" or settings.huber_schedule == "constant":
        return delta
    if settings.huber_schedule == "snr":
        return (1 - delta) / (1 + schedule.snr(t).rsqrt()) ** 2 + delta
    levels = getattr(schedule, "levels", None)
    return delta ** (t if levels is None else t * (levels - 1) / levels)


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
    error, delta = prediction.float() - target.float(), huber_deltas(t, schedule, settings)
    cost = LOSSES[settings.loss](error, per_row(delta, error) if isinstance(delta, Tensor) else delta)
    if settings.masked_loss and masks is not None:
        cost = weigh_by_masks(cost, join_masks(masks, cost, settings.unmasked_weight), settings.normalise_masks)
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
    return losses.mean() if weights is None else (losses * upload(weights, losses.device)).mean()


def weigh_by_masks(cost: Tensor, masks: Tensor, normalise: bool) -> Tensor:
    """The cost times the masks; normalised, also divided by the mask's mean, as OneTrainer's normalized masked area.

    Then a small mask counts as much as a whole image. An empty mask counts nothing.
    """
    if not normalise:
        return cost * masks
    area = masks.flatten(1).mean(1)
    return cost * masks * per_row(torch.where(area > 0, 1 / area.clamp(min=MASK_AREA), 0.0), cost)


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
