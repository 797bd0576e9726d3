"""How noise and timesteps are drawn and how the loss is computed: the settings, without code."""

from __future__ import annotations

from dataclasses import dataclass

# The version of the rules of timesteps, weights, warmup and adapter dropout that new runs follow. A run keeps the one
# that it began with, so that it resumes bit for bit. 1: the first and last noise level were drawn half as often as the
# others, "debiased" weighted v models by √snr / (1 + snr), and warmup began at 1 / (warmup_steps + 1). 1 and 2: adapter
# dropout had a generator per layer.
RULES = 3

TIMESTEPS = ("uniform", "logit_normal")
RESOLUTION_SHIFTS = ("off", "flux", "sd3")
HUBER_SCHEDULES = ("constant", "exponential", "snr")
GUIDANCE_SCHEDULES = ("constant", "sigma")


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
    resolution_shift: str = "off"
    huber_schedule: str = "constant"
    multires_noise: int = 0  # levels of coarser noise
    multires_discount: float = 0.3
    input_perturbation: float = 0.0
    normalise_masks: bool = False
    guidance_target: float = 1.0
    guidance_schedule: str = "constant"
    rules: int = RULES
