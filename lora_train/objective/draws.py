"""The random part of a step: the noise and the timestep of each row, from a private generator. Pure functions."""

from __future__ import annotations

import torch
from torch import Tensor

from ..compute import upload
from ..denoiser import NoiseSchedule
from .settings import ObjectiveSettings


def draw_noise(latents: Tensor, settings: ObjectiveSettings, generator: torch.Generator) -> Tensor:
    """Noise for these latents, drawn on the CPU so that a seed gives the same noise on every device."""
    noise = torch.randn(latents.shape, generator=generator)
    if settings.noise_offset:
        flat = torch.randn(*latents.shape[:2], *[1] * (latents.ndim - 2), generator=generator)
        noise = noise + settings.noise_offset * flat
    return upload(noise, latents.device)


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
