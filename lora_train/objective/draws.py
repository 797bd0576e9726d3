"""The random part of a step: the noise and the timestep of each row, from a private generator. Pure functions."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import TrainError
from ..compute import upload
from ..denoiser import NoiseSchedule
from .settings import ObjectiveSettings

# Flux's shift over the number of image tokens (16×16 pixels each), as ComfyUI's ModelSamplingFlux and diffusers'
# `calculate_shift` have it: from 0.5 at 256 tokens to 1.15 at 4,096, which is the size that models' own shifts are for.
FLUX_TOKENS, FLUX_SHIFTS = (256, 4096), (0.5, 1.15)
TOKEN_PIXELS = 16 * 16


def draw_noise(latents: Tensor, settings: ObjectiveSettings, generator: torch.Generator) -> Tensor:
    """Noise for these latents, drawn on the CPU so that a seed gives the same noise on every device."""
    noise = torch.randn(latents.shape, generator=generator)
    if settings.noise_offset:
        flat = torch.randn(*latents.shape[:2], *[1] * (latents.ndim - 2), generator=generator)
        noise = noise + settings.noise_offset * flat
    if settings.multires_noise:
        if latents.ndim < 4:
            raise TrainError(
                f"multires_noise = {settings.multires_noise}: needs latents of images or video, found the shape "
                f"{tuple(latents.shape[1:])}; set multires_noise = 0"
            )
        noise = _add_coarser(noise, settings, generator)
    return upload(noise, latents.device)


def draw_perturbation(latents: Tensor, generator: torch.Generator) -> Tensor:
    """Noise that is added to the noise of the model's input, but not to its target."""
    return upload(torch.randn(latents.shape, generator=generator), latents.device)


def draw_times(
    count: int,
    schedule: NoiseSchedule,
    settings: ObjectiveSettings,
    generator: torch.Generator,
    pixels: Sequence[int] = (),
) -> Tensor:
    """[count] timesteps on the CPU: drawn, shifted, then scaled to the range t_min to t_max.

    A schedule with a number of `levels` has no timesteps in between; with "uniform", all levels are equally likely.
    `pixels` are the sizes of the rows' images, for a shift by resolution.
    """
    if settings.timesteps == "uniform":
        t = torch.rand(count, generator=generator)
    else:
        t = torch.sigmoid(settings.logit_mean + settings.logit_std * torch.randn(count, generator=generator))
    if settings.resolution_shift == "off":
        return _placed(t, schedule, settings, settings.shift)
    assert len(pixels) == count, f"{len(pixels)} image sizes for {count} rows"
    shifts = [settings.shift * resolution_factor(settings.resolution_shift, size) for size in pixels]
    times = torch.empty_like(t)
    for shift in sorted(set(shifts)):
        rows = [row for row, other in enumerate(shifts) if other == shift]
        times[rows] = _placed(t[rows], schedule, settings, shift)
    return times


def resolution_factor(kind: str, pixels: float) -> float:
    """The factor on the shift for images of this many pixels; 1 at 1024×1024, for which models have their own shift.

    "flux": e^μ(tokens) / e^μ(4096), with μ linear in the number of tokens, as Flux is sampled.
    "sd3": √(pixels / 1024²), the rule of the SD3 paper (√(m/n), its equation 23).
    """
    tokens = pixels / TOKEN_PIXELS
    if kind == "sd3":
        return math.sqrt(tokens / FLUX_TOKENS[1])
    slope = (FLUX_SHIFTS[1] - FLUX_SHIFTS[0]) / (FLUX_TOKENS[1] - FLUX_TOKENS[0])
    return math.exp(slope * (tokens - FLUX_TOKENS[1]))


def _add_coarser(noise: Tensor, settings: ObjectiveSettings, generator: torch.Generator) -> Tensor:
    """noise + Σ discount^i · noise of 1 / r^i the size, with r drawn from 2 to 4 for each i; then the deviation is 1.

    As `pyramid_noise_like` of kohya's scripts. The sizes come from the generator's seed.
    """
    sizes, (height, width) = random.Random(generator.initial_seed()), noise.shape[-2:]
    for level in range(settings.multires_noise):
        shrink = (sizes.random() * 2 + 2) ** level
        size = max(1, int(height / shrink)), max(1, int(width / shrink))
        coarse = torch.randn(*noise.shape[:-2], *size, generator=generator)
        grown = F.interpolate(coarse.flatten(1, -3), (height, width), mode="bilinear").reshape(noise.shape)
        noise = noise + grown * settings.multires_discount**level
        if 1 in size:
            break
    return noise / noise.std()


def _placed(t: Tensor, schedule: NoiseSchedule, settings: ObjectiveSettings, shift: float) -> Tensor:
    """Values in [0, 1) → timesteps, shifted and in the range of the settings."""
    levels = getattr(schedule, "levels", None)
    if levels is not None and levels > 1 and settings.rules > 1:
        return _draw_levels(t, levels, schedule, settings, shift)
    if shift != 1:
        t = schedule.shifted(t, shift)
    return settings.t_min + (settings.t_max - settings.t_min) * t


def _draw_levels(t: Tensor, levels: int, schedule: NoiseSchedule, settings: ObjectiveSettings, shift: float) -> Tensor:
    """The timesteps of the levels that values in [0, 1) fall into. Rounding would halve the share of both ends."""
    last = levels - 1
    if shift != 1:
        shifted = schedule.shifted(_level(t, 0, last) / last, shift)
        t = ((shifted * last).round() + 0.5) / levels  # the middle of the level's part of [0, 1)
    return (_level(t, round(settings.t_min * last), round(settings.t_max * last)) / last).float()


def _level(t: Tensor, low: int, high: int) -> Tensor:
    return (low + (t.double() * (high - low + 1)).floor()).clamp(low, high)
