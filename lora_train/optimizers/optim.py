"""Optimizers and learning-rate schedules, by name.

An optimizer from a package that is not installed raises an error with the install command.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch

from ...errors import TrainError
from .by_name import MakeOptimizer, check_arguments, estimates_rate, find_optimizer, group_facts, own_arguments, try_out


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
    one_rate: bool = False  # whether all groups must have the same learning rate
    needs_momentum: bool = False
    fuses: bool = False  # whether torch can update all weights in one call, which also needs no answer of the device


def _adam(rates: Rates) -> dict[str, Any]:
    return {"betas": (rates.beta1, rates.beta2), "eps": rates.epsilon, "weight_decay": rates.weight_decay}


def _plain(rates: Rates) -> dict[str, Any]:
    return {"weight_decay": rates.weight_decay}


def _sgd(rates: Rates) -> dict[str, Any]:
    return {"momentum": rates.beta1, "weight_decay": rates.weight_decay}


OPTIMIZERS: dict[str, OptimizerKind] = {
    "AdamW": OptimizerKind("torch.optim", "AdamW", _adam, fuses=True),
    "Adam": OptimizerKind("torch.optim", "Adam", _adam, fuses=True),
    "Adafactor": OptimizerKind(".adafactor", "Adafactor", _plain),
    "SGD": OptimizerKind("torch.optim", "SGD", _sgd, fuses=True),
    "Prodigy": OptimizerKind("prodigyopt", "Prodigy", _adam, "prodigyopt", one_rate=True),
    "AdamW8bit": OptimizerKind("bitsandbytes.optim", "AdamW8bit", _adam, "bitsandbytes"),
    "AdamWScheduleFree": OptimizerKind("schedulefree", "AdamWScheduleFree", _adam, "schedulefree", needs_momentum=True),
    "SGDScheduleFree": OptimizerKind("schedulefree", "SGDScheduleFree", _sgd, "schedulefree", needs_momentum=True),
}


FORMS = ("foreach", "fused", "capturable")  # how torch computes an update; they depend on the device


@dataclass(frozen=True)
class Curve:
    """A learning-rate schedule over `steps` steps, with a linear warmup."""

    schedule: str
    steps: int
    warmup: int = 0
    cycles: int = 1
    power: float = 1.0
    floor: float = 0.0
    warmup_from_zero: bool = True  # False: runs that began before version 0.3

    def factor(self, step: int) -> float:
        """The factor on the learning rate at step 0, 1, …, from the step alone: there is no state to resume."""
        if step < self.warmup:  # as in diffusers: the first step has rate 0, step number `warmup` the full rate
            return step / self.warmup if self.warmup_from_zero else (step + 1) / (self.warmup + 1)
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


@dataclass(frozen=True)
class OptimizerChoice:
    """An optimizer by name, or `other`, one of another package, with arguments that override those of the settings."""

    name: str
    other: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """For messages."""
        return f'other_optimizer = "{self.other}"' if self.other else f'optimizer = "{self.name}"'

    @property
    def one_rate(self) -> bool:
        """Whether all groups must have the same learning rate."""
        return estimates_rate(self.find()) if self.other else OPTIMIZERS[self.name].one_rate

    def find(self) -> type[torch.optim.Optimizer]:
        return find_optimizer(self.other) if self.other else find_class(self.name)

    def all_arguments(self, rates: Rates) -> dict[str, Any]:
        own = own_arguments(self.find(), rates.weight_decay) if self.other else OPTIMIZERS[self.name].arguments(rates)
        return {**own, **self.arguments}

    def maker(self, rates: Rates, fused: bool) -> MakeOptimizer:
        """Makes the optimizer, fused if that is asked for and torch can."""
        make = partial(cast("Any", self.find()), lr=rates.learning_rate, **self.all_arguments(rates))
        can_fuse = not self.other and OPTIMIZERS[self.name].fuses and not {*FORMS} & {*self.arguments}
        return partial(_make_fused, make) if fused and can_fuse else make

    def check(self, rates: Rates, fused: bool) -> None:
        """Refuse before the first step what the optimizer would refuse, or ignore, later."""
        label = self.label
        needs_momentum = not self.other and OPTIMIZERS[self.name].needs_momentum
        if needs_momentum and not rates.beta1 and "betas" not in self.arguments:
            raise TrainError(f"{label}: needs beta1 above 0; found 0, usual is 0.9")
        kind = self.find()
        check_arguments(kind, label, self.arguments)
        if self.other or self.arguments:
            try_out(self.maker(replace(rates, learning_rate=1e-3), fused), label, self.arguments)


def make_optimizer(
    choice: str | OptimizerChoice, groups: Iterable[dict[str, Any]], rates: Rates, fused: bool = True
) -> torch.optim.Optimizer:
    """An optimizer over parameter groups; each group stores its own rate as `base_lr`, for schedules.

    A fused one rounds differently, so a run keeps the form that it began with: see `was_fused`.
    """
    choice = OptimizerChoice(choice) if isinstance(choice, str) else choice
    choice.check(rates, fused)
    groups = [{"lr": rates.learning_rate, **group} for group in groups]
    found = sorted({group["lr"] for group in groups})
    if len(found) > 1 and choice.one_rate:
        raise TrainError(
            f"{choice.label}: estimates one learning rate for all modules, but group_rates or lora_plus gives "
            f"{', '.join(f'{rate:g}' for rate in found)}; use 0 or {rates.learning_rate:g} there and lora_plus = 1, or "
            "another optimizer"
        )
    if choice.other:
        groups = [{**group_facts(group["params"]), **group} for group in groups]
    optimizer = choice.maker(rates, fused)(groups)
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    set_mode(optimizer, training=True)
    return optimizer


def load_optimizer(optimizer: torch.optim.Optimizer, choice: str | OptimizerChoice, saved: Mapping[str, Any]) -> None:
    """Continue from a saved `state_dict`, with the rates of this optimizer instead of the saved ones.

    Parameters are matched by the names in their groups, so groups may differ; a parameter without saved values starts
    without them. Everything else in a group (Prodigy's estimate, the sums of schedule-free optimizers) continues.
    """
    choice = OptimizerChoice(choice) if isinstance(choice, str) else choice
    now = optimizer.state_dict()
    if any("names" not in group for group in saved["param_groups"]):
        _name_by_position(saved["param_groups"], now["param_groups"])
    kept = {"params", "names", *FORMS}
    settings = {"lr", "base_lr", *choice.all_arguments(Rates(1.0))}
    wanted = [{key: group[key] for key in settings if key in group} for group in now["param_groups"]]
    owners = {member: group for group in saved["param_groups"] for member in group["names"]}
    for group in now["param_groups"]:
        owner = next((owners[member] for member in group["names"] if member in owners), saved["param_groups"][0])
        group |= {key: value for key, value in owner.items() if key not in kept}
    values = {member: saved["state"].get(number) for member, number in _named(saved["param_groups"])}
    now["state"] = {n: _complete(values[member]) for member, n in _named(now["param_groups"]) if values.get(member)}
    optimizer.load_state_dict(now)
    if any(_momentum(group) != _momentum(new) for group, new in zip(optimizer.param_groups, wanted)):
        # Schedule-free weights for training depend on beta1: they are left with the old one, entered with the new one.
        set_mode(optimizer, training=False)
    for group, new in zip(optimizer.param_groups, wanted):
        group |= new
    set_mode(optimizer, training=True)


def was_fused(saved: Mapping[str, Any]) -> bool:
    """Whether this `state_dict` is of a fused optimizer. Those of versions before 0.3 are not."""
    return any(group.get("fused") for group in saved["param_groups"])


def find_class(name: str) -> type[torch.optim.Optimizer]:
    """The optimizer's class, or a TrainError with the command that installs it."""
    kind = OPTIMIZERS[name]
    try:
        return getattr(importlib.import_module(kind.module, __package__), kind.name)
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
        if kind.module.startswith(".") or importlib.util.find_spec(kind.module.partition(".")[0])
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


def _make_fused(make: Callable[..., torch.optim.Optimizer], groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    try:
        return make([dict(group) for group in groups], fused=True)
    except RuntimeError:  # torch has no fused form for this device
        return make(groups)


def _named(groups: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    return ((name, number) for group in groups for name, number in zip(group["names"], group["params"], strict=True))


def _momentum(group: Mapping[str, Any]) -> Any:
    return group.get("momentum"), group.get("betas", ())[:1]


def _complete(values: Mapping[str, Any]) -> dict[str, Any]:
    if "exp_avg_sq" in values and not {"exp_avg", "z"} & set(values):  # Prodigy stores no momentum while beta1 is 0
        return {**values, "exp_avg": torch.zeros_like(values["exp_avg_sq"])}
    return dict(values)


def _name_by_position(saved: list[dict[str, Any]], now: list[dict[str, Any]]) -> None:
    """States of earlier versions have no names: there, groups must be the same as now."""
    if [len(group["params"]) for group in saved] != [len(group["params"]) for group in now]:
        raise TrainError(
            "group_rates: this state was saved by an earlier version, which stored no parameter names; set group_rates "
            "back to resume"
        )
    for old, new in zip(saved, now):
        old["names"] = new["names"]


def _cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2
