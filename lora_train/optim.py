"""Optimizers and learning-rate schedules, by name.

An optimizer from a package that is not installed raises an error with the install command.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch

from .errors import TrainError


@dataclass(frozen=True)
class Rates:
    """The hyperparameters of optimizers, under the names of the settings."""

    learning_rate: float
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8


@dataclass(frozen=True)
class OptimizerKind:
    """The module and name of an optimizer's class, its arguments, and the package to install."""

    module: str
    name: str
    arguments: Callable[[Rates], dict[str, Any]]
    install: str = ""


def _adam(rates: Rates) -> dict[str, Any]:
    return {"betas": (rates.beta1, rates.beta2), "eps": rates.epsilon, "weight_decay": rates.weight_decay}


def _plain(rates: Rates) -> dict[str, Any]:
    return {"weight_decay": rates.weight_decay}


def _sgd(rates: Rates) -> dict[str, Any]:
    return {"momentum": rates.beta1, "weight_decay": rates.weight_decay}


OPTIMIZERS: dict[str, OptimizerKind] = {
    "AdamW": OptimizerKind("torch.optim", "AdamW", _adam),
    "Adam": OptimizerKind("torch.optim", "Adam", _adam),
    "Adafactor": OptimizerKind("torch.optim", "Adafactor", _plain, "torch>=2.5"),
    "SGD": OptimizerKind("torch.optim", "SGD", _sgd),
    "Prodigy": OptimizerKind("prodigyopt", "Prodigy", _adam, "prodigyopt"),
    "AdamW8bit": OptimizerKind("bitsandbytes.optim", "AdamW8bit", _adam, "bitsandbytes"),
    "AdamWScheduleFree": OptimizerKind("schedulefree", "AdamWScheduleFree", _adam, "schedulefree"),
    "SGDScheduleFree": OptimizerKind("schedulefree", "SGDScheduleFree", _sgd, "schedulefree"),
}


@dataclass(frozen=True)
class Curve:
    """A learning-rate schedule over `steps` steps, with a linear warmup."""

    schedule: str
    steps: int
    warmup: int = 0
    cycles: int = 1
    power: float = 1.0
    floor: float = 0.0

    def factor(self, step: int) -> float:
        """The factor on the learning rate at step 0, 1, …, from the step alone: there is no state to resume."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        # The last step is just above the floor: a step with rate 0 would be wasted.
        done = min((step - self.warmup) / max(self.steps - self.warmup, 1), 1.0)
        return self.floor + (1 - self.floor) * SCHEDULES[self.schedule](done, self)


# Share of the run that is done, from 0 to 1 → factor on the learning rate.
SCHEDULES: dict[str, Callable[[float, Curve], float]] = {
    "constant": lambda done, curve: 1.0,
    "linear": lambda done, curve: 1 - done,
    "cosine": lambda done, curve: _cosine(done),
    "cosine_restarts": lambda done, curve: _cosine(done * curve.cycles % 1 if done < 1 else 1.0),
    "polynomial": lambda done, curve: (1 - done) ** curve.power,
}


def make_optimizer(name: str, groups: Iterable[dict[str, Any]], rates: Rates) -> torch.optim.Optimizer:
    """An optimizer over parameter groups; each group stores its own rate as `base_lr`, for schedules."""
    groups = [{"lr": rates.learning_rate, **group} for group in groups]
    optimizer = cast("Any", find_class(name))(groups, lr=rates.learning_rate, **OPTIMIZERS[name].arguments(rates))
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    set_mode(optimizer, training=True)
    return optimizer


def find_class(name: str) -> type[torch.optim.Optimizer]:
    """The optimizer's class, or a TrainError with the command that installs it."""
    kind = OPTIMIZERS[name]
    try:
        return getattr(importlib.import_module(kind.module), kind.name)
    except (ImportError, AttributeError):
        package = kind.module.partition(".")[0]
        raise TrainError(
            f'optimizer = "{name}": needs {kind.install or package}, which is not installed; '
            f'run "pip install {kind.install or package}", or choose one of {", ".join(available())}'
        ) from None


def available() -> list[str]:
    """Names of the optimizers whose packages are installed; the packages are not imported."""
    return [
        name
        for name, kind in OPTIMIZERS.items()
        if importlib.util.find_spec(kind.module.partition(".")[0])
        and (kind.module != "torch.optim" or hasattr(torch.optim, kind.name))
    ]


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> float:
    """Set each group's rate to `base_lr` · factor; returns the first group's rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
    return optimizer.param_groups[0]["lr"]


def set_mode(optimizer: torch.optim.Optimizer, training: bool) -> None:
    """Switch schedule-free optimizers between their weights for training and for use; others have no modes."""
    switch = getattr(optimizer, "train" if training else "eval", None)
    if switch is not None:
        switch()


def _cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2
