"""What a step trains on: noise schedules, draws of noise and timesteps, losses and their weights."""

from .draws import draw_noise, draw_perturbation, draw_times
from .loss import (
    EPS_PER_NATIVE,
    LOSSES,
    WEIGHTINGS,
    evaluate,
    mean_loss,
    noisy_input,
    row_losses,
    row_weights,
)
from .noise_schedule import SNR_BOUND, DiffusionSchedule, FlowSchedule, per_row, scaled_linear_alphas
from .settings import (
    GUIDANCE_SCHEDULES,
    HUBER_SCHEDULES,
    RESOLUTION_SHIFTS,
    RULES,
    TIMESTEPS,
    ObjectiveSettings,
)

__all__ = [
    "EPS_PER_NATIVE",
    "GUIDANCE_SCHEDULES",
    "HUBER_SCHEDULES",
    "LOSSES",
    "RESOLUTION_SHIFTS",
    "RULES",
    "SNR_BOUND",
    "TIMESTEPS",
    "WEIGHTINGS",
    "DiffusionSchedule",
    "FlowSchedule",
    "ObjectiveSettings",
    "draw_noise",
    "draw_perturbation",
    "draw_times",
    "evaluate",
    "mean_loss",
    "noisy_input",
    "per_row",
    "row_losses",
    "row_weights",
    "scaled_linear_alphas",
]
