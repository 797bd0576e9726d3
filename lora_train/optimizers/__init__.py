"""Optimizers and learning-rate schedules, by name."""

from .optim import (
    OPTIMIZERS,
    SCHEDULES,
    Curve,
    OptimizerChoice,
    Rates,
    available,
    load_optimizer,
    make_optimizer,
    set_mode,
    set_rate,
    was_fused,
)

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "Curve",
    "OptimizerChoice",
    "Rates",
    "available",
    "load_optimizer",
    "make_optimizer",
    "set_mode",
    "set_rate",
    "was_fused",
]
