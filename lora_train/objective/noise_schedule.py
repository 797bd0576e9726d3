"""Noise schedules: how data and noise mix at time t, and what models of each kind predict."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import TrainError
from ..denoiser import Prediction

# The SNR goes to 0 at one end and to infinity at the other; clamping keeps weights finite in float32.
SNR_BOUND = 1e8


class FlowSchedule:
    """Rectified flow: x_t = (1 - t)·x + t·noise, and the target is the velocity noise - x."""

    prediction: Prediction = "flow"

    def noisy(self, latents: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        t = per_row(t, latents)
        return (1 - t) * latents + t * noise

    def target(self, latents: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        return noise - latents

    def snr(self, t: Tensor) -> Tensor:
        return _ratio((1 - t) ** 2, t**2)

    def shifted(self, t: Tensor, shift: float) -> Tensor:
        """Divide the SNR by shift²: more timesteps have more noise."""
        return shift * t / (1 + (shift - 1) * t)


class DiffusionSchedule:
    """Variance-preserving diffusion over a table of ᾱ (signal power), for eps and v prediction.

    `t` in [0, 1] selects the table entry round(t · (N - 1)): these models are trained on integer timesteps.
    """

    def __init__(self, alphas_cumprod: Tensor, prediction: Prediction = "eps") -> None:
        if prediction not in ("eps", "v"):
            raise TrainError(f'schedule: prediction is "{prediction}", expected "eps" or "v"')
        self.prediction: Prediction = prediction
        self.alphas_cumprod = alphas_cumprod.detach().to(torch.float32)
        self.levels = len(alphas_cumprod)

    def timestep(self, t: Tensor) -> Tensor:
        """[B] integer timesteps: positions in the table."""
        return (t * (len(self.alphas_cumprod) - 1)).round().long().clamp(0, len(self.alphas_cumprod) - 1)

    def alpha(self, t: Tensor) -> Tensor:
        """[B] the signal power ᾱ at t."""
        return self.alphas_cumprod.to(t.device)[self.timestep(t)]

    def noisy(self, latents: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        alpha = per_row(self.alpha(t), latents)
        return alpha.sqrt() * latents + (1 - alpha).sqrt() * noise

    def target(self, latents: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        if self.prediction == "eps":
            return noise
        alpha = per_row(self.alpha(t), latents)
        return alpha.sqrt() * noise - (1 - alpha).sqrt() * latents

    def snr(self, t: Tensor) -> Tensor:
        alpha = self.alpha(t)
        return _ratio(alpha, 1 - alpha)

    def shifted(self, t: Tensor, shift: float) -> Tensor:
        """Divide the SNR by shift², then find the timestep that has this SNR."""
        if shift == 1:
            return t
        log_snr = torch.logit(self.alphas_cumprod.double(), eps=1e-12).to(t.device)
        wanted = log_snr[self.timestep(t)] - 2 * torch.log(torch.tensor(shift, dtype=torch.float64, device=t.device))
        # The table falls with t; searchsorted needs a rising one.
        place = torch.searchsorted(-log_snr, -wanted.contiguous()).clamp(max=len(log_snr) - 1)
        return (place / (len(log_snr) - 1)).to(t.dtype)


def scaled_linear_alphas(steps: int = 1000, start: float = 0.00085, end: float = 0.012) -> Tensor:
    """ᾱ of the "scaled linear" schedule of most latent diffusion models: √beta is linear."""
    betas = torch.linspace(start**0.5, end**0.5, steps, dtype=torch.float64) ** 2
    return torch.cumprod(1 - betas, dim=0)


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """[B] → [B, 1, 1, …]: one value per row, shaped to multiply a batch of any rank."""
    return values.reshape(-1, *[1] * (like.ndim - 1)).to(like.dtype)


def _ratio(signal: Tensor, noise: Tensor) -> Tensor:
    return (signal / noise.clamp(min=1 / SNR_BOUND)).clamp(1 / SNR_BOUND, SNR_BOUND)
