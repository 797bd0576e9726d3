"""The noise schedule of a ComfyUI model, measured on its own model sampling: no model family is named here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ....lora_train import EPS_PER_NATIVE, SNR_BOUND, Prediction, TrainError, per_row


@dataclass(frozen=True)
class Tables:
    """[steps] values for every noise level of the model, from the cleanest to the noisiest.

    x_t = signal · latents + noise · noise;   the output that denoises it = from_latents · latents + from_noise · noise.
    """

    sigma: Tensor
    signal: Tensor
    noise: Tensor
    from_latents: Tensor
    from_noise: Tensor
    snr: Tensor

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Tables:
        return Tables(**{name: value.to(device, dtype) for name, value in vars(self).items()})


class ModelSchedule:
    """How a model mixes noise and data, and what it predicts. `t` in [0, 1] is a position in its table of noise levels.

    ComfyUI's schedulers use the same table, so a shift set on the model (ModelSamplingFlux, …) applies here too.
    """

    def __init__(self, sampling: Any) -> None:
        with torch.inference_mode(False), torch.no_grad():
            exact, factor = _measure(sampling)
            self.prediction: Prediction = _classify(sampling, exact.snr, factor)
            cpu = torch.device("cpu")
            self.tables = {cpu: exact.to(cpu, torch.float32)}
            self._log_snr = exact.snr.log()
            self.levels = len(self._log_snr)

    def sigma(self, t: Tensor) -> Tensor:
        """[B] ComfyUI's noise levels."""
        return self._at(t).sigma[self.place(t)]

    def place(self, t: Tensor) -> Tensor:
        """[B] rows of the table."""
        last = len(self._log_snr) - 1
        return (t * last).round().long().clamp(0, last)

    def noisy(self, latents: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        tables, place = self._at(t), self.place(t)
        return per_row(tables.signal[place], latents) * latents + per_row(tables.noise[place], latents) * noise

    def target(self, latents: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        tables, place = self._at(t), self.place(t)
        wanted = per_row(tables.from_noise[place], latents) * noise
        return wanted + per_row(tables.from_latents[place], latents) * latents

    def snr(self, t: Tensor) -> Tensor:
        return self._at(t).snr[self.place(t)].clamp(1 / SNR_BOUND, SNR_BOUND)

    def shifted(self, t: Tensor, shift: float) -> Tensor:
        """Divide the SNR by shift², then look up the row with this SNR."""
        if shift == 1:
            return t
        log_snr = self._log_snr.to(t.device)
        wanted = log_snr[self.place(t)] - 2 * torch.log(torch.tensor(shift, dtype=torch.float64, device=t.device))
        # The table falls with t; searchsorted wants it rising.
        place = torch.searchsorted(-log_snr, -wanted.contiguous()).clamp(max=len(log_snr) - 1)
        return (place / (len(log_snr) - 1)).to(t.dtype)

    def _at(self, t: Tensor) -> Tables:
        if t.device not in self.tables:
            self.tables[t.device] = self.tables[torch.device("cpu")].to(t.device)
        return self.tables[t.device]


def _measure(sampling: Any) -> tuple[Tables, Tensor]:
    """The tables in float64, and [steps] (error of the noise / error of the output)².

    Both of ComfyUI's functions are linear, so ones and zeros reveal their coefficients: x_t = q·latents + p·noise and
    denoised = a·x_t + b·output. The target is the output for which denoised = latents.
    """
    sigma = sampling.sigmas.detach().to("cpu", torch.float64).clone()
    one, zero = torch.ones(len(sigma), 1, dtype=torch.float64), torch.zeros(len(sigma), 1, dtype=torch.float64)
    q, p = (sampling.noise_scaling(sigma, *given)[:, 0] for given in ((zero, one), (one, zero)))
    a, b = (sampling.calculate_denoised(sigma, *given)[:, 0] for given in ((zero, one), (one, zero)))
    if not (p > 0).all() or not (b != 0).all():
        raise TrainError(
            f"model: its sampling {_name(sampling)} adds no noise that a LoRA could learn to remove; "
            "train the text-to-image model that it is based on"
        )
    # Some models scale the noise. Measuring in units of that scale leaves the noise levels and the loss weights as they
    # are without it.
    unit = p / getattr(sampling, "noise_scale", 1.0)
    snr = (getattr(sampling, "sigma_data", 1.0) * q / unit) ** 2
    tables = Tables(sigma, q, p, (1 - a * q) / b, -a * p / b, snr.clamp(min=1e-30))
    return tables, (q * b / unit) ** 2


def _classify(sampling: Any, snr: Tensor, factor: Tensor) -> Prediction:
    """Which of the known prediction types weights errors as this model does."""
    middle = slice(1, -1)  # the ends may be rounded, and zero-SNR models replace the last level
    for prediction, expected in EPS_PER_NATIVE.items():
        if torch.allclose(factor[middle], expected(snr[middle]), rtol=1e-4, atol=1e-12):
            return cast(Prediction, prediction)
    raise TrainError(
        f"model: its sampling {_name(sampling)} predicts none of {', '.join(EPS_PER_NATIVE)}; "
        "other prediction types are not supported"
    )


def _name(sampling: Any) -> str:
    return " + ".join(base.__name__ for base in type(sampling).__bases__)
