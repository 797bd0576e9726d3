"""Optimizers: torch's own, and those of optional packages, which are named with their install command when missing."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from .errors import TrainError

# Share of the run that is done, in [0, 1] → share of the learning rate.
SCHEDULES: dict[str, Callable[[float, Curve], float]] = {
    "constant": lambda done, curve: 1.0,
    "linear": lambda done, curve: 1 - done,
    "cosine": lambda done, curve: _cosine(done),
    "cosine_restarts": lambda done, curve: _cosine(done * curve.cycles % 1 if done < 1 else 1.0),
    "polynomial": lambda done, curve: (1 - done) ** curve.power,
}


@dataclass(frozen=True)
class Rates:
    """The numbers that optimizers take, by the names of the settings."""

    learning_rate: float
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8


@dataclass(frozen=True)
class Maker:
    """Where an optimizer's class lives, what installs it, and how its arguments follow from the settings."""

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


OPTIMIZERS: dict[str, Maker] = {
    "AdamW": Maker("torch.optim", "AdamW", _adam),
    "Adam": Maker("torch.optim", "Adam", _adam),
    "Adafactor": Maker("torch.optim", "Adafactor", _plain, "torch>=2.5"),
    "SGD": Maker("torch.optim", "SGD", _sgd),
    "Prodigy": Maker("prodigyopt", "Prodigy", _adam, "prodigyopt"),
    "AdamW8bit": Maker("bitsandbytes.optim", "AdamW8bit", _adam, "bitsandbytes"),
    "AdamWScheduleFree": Maker("schedulefree", "AdamWScheduleFree", _adam, "schedulefree"),
    "SGDScheduleFree": Maker("schedulefree", "SGDScheduleFree", _sgd, "schedulefree"),
}


def make_optimizer(name: str, groups: Iterable[dict[str, Any]], rates: Rates) -> torch.optim.Optimizer:
    """An optimizer over parameter groups; each group keeps its own rate as `base_lr`, which schedules multiply."""
    groups = [{"lr": rates.learning_rate, **group} for group in groups]
    optimizer = find_class(name)(groups, lr=rates.learning_rate, **OPTIMIZERS[name].arguments(rates))
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    set_mode(optimizer, training=True)
    return optimizer


def find_class(name: str) -> type[torch.optim.Optimizer]:
    """The optimizer's class, or a TrainError with the command that installs it."""
    maker = OPTIMIZERS[name]
    try:
        return getattr(importlib.import_module(maker.module), maker.name)
    except (ImportError, AttributeError):
        package = maker.module.partition(".")[0]
        raise TrainError(
            f'optimizer = "{name}": needs {maker.install or package}, which is not installed; '
            f'run "pip install {maker.install or package}", or choose one of {", ".join(available())}'
        ) from None


def available() -> list[str]:
    """Names of the optimizers whose packages are installed, without importing those packages."""
    return [
        name
        for name, maker in OPTIMIZERS.items()
        if importlib.util.find_spec(maker.module.partition(".")[0])
        and (maker.module != "torch.optim" or hasattr(torch.optim, maker.name))
    ]


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> float:
    """Multiply each group's own rate; returns the first group's."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
    return optimizer.param_groups[0]["lr"]


def set_mode(optimizer: torch.optim.Optimizer, training: bool) -> None:
    """Schedule-free optimizers keep other weights for training than for use; the rest have no modes."""
    switch = getattr(optimizer, "train" if training else "eval", None)
    if switch is not None:
        switch()


@dataclass(frozen=True)
class Curve:
    """A schedule over `steps` steps, of which the first `warmup` rise from near zero."""

    schedule: str
    steps: int
    warmup: int = 0
    cycles: int = 1
    power: float = 1.0
    floor: float = 0.0

    def factor(self, step: int) -> float:
        """The factor for step 0, 1, …: a function of the step alone, so a resumed run has nothing to restore."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        # The last step's factor is near the floor, not at it: a step at zero would be wasted.
        done = min((step - self.warmup) / max(self.steps - self.warmup, 1), 1.0)
        return self.floor + (1 - self.floor) * SCHEDULES[self.schedule](done, self)


def _cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2
