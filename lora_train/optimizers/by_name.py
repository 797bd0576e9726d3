"""Optimizers of other packages by name, and the arguments of any optimizer, checked before the first step."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...errors import TrainError
from ...setting import closest_name
from ..memory import with_data

# Module → the name under which pip installs it. Every optimizer in them can be named.
PACKAGES = {"pytorch_optimizer": "pytorch-optimizer", "prodigyplus": "prodigy-plus-schedule-free"}
RESERVED = {"params": "", "lr": "learning_rate", "defaults": ""}  # arguments that have another way in
TRIAL_STEPS = 2
MAX_REASON = 200  # characters of another package's message

# Parameter groups → an optimizer over them.
MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]


def find_optimizer(name: str) -> type[torch.optim.Optimizer]:
    """The class of this name, in any spelling of capitals; a TrainError says what is missing."""
    known: dict[str, type[torch.optim.Optimizer]] = {}
    for module in PACKAGES:
        try:
            found = vars(importlib.import_module(module))
        except ImportError:
            continue
        known |= {key.lower(): value for key, value in found.items() if _is_optimizer(value)}
    if name.lower() in known:
        return known[name.lower()]
    if not known:
        commands = " or ".join(f'"pip install {package}"' for package in PACKAGES.values())
        raise TrainError(
            f'other_optimizer = "{name}": no package that could have it is installed; run {commands}, or leave it empty'
        )
    hint = closest_name(name, [kind.__name__ for kind in known.values()])
    raise TrainError(f'other_optimizer = "{name}": none of {len(known)} installed optimizers has this name{hint}')


def own_arguments(kind: type[torch.optim.Optimizer], weight_decay: float) -> dict[str, Any]:
    """The weight decay, if the optimizer has one. Betas and epsilon are its own, unless `optimizer_args` has them."""
    return {"weight_decay": weight_decay} if "weight_decay" in _parameters(kind) else {}


def estimates_rate(kind: type[torch.optim.Optimizer]) -> bool:
    """Whether it finds its own learning rate, one for all weights: `d0` is the first estimate, in all such classes."""
    return "d0" in _parameters(kind)


def check_arguments(kind: type[torch.optim.Optimizer], label: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that the optimizer does not have. Many accept any name and ignore what they do not know."""
    known = _parameters(kind)
    for name in arguments:
        if name in RESERVED:
            remedy = f"; set {RESERVED[name]}" if RESERVED[name] else ""
            raise TrainError(f"optimizer_args: {name} is not for {label} to take from here{remedy}")
        if name not in known:
            hint = closest_name(name, known) or f"; it has {', '.join(known)}"
            raise TrainError(f'optimizer_args: {label} has no argument "{name}"{hint}')


def try_out(make: MakeOptimizer, label: str, given: Mapping[str, Any]) -> None:
    """Take steps with two small weights, and again from a saved state: what fails or differs is refused.

    Some optimizers need a closure, the model, or a graph that is kept; some draw random numbers. `given` are the
    arguments to name in the refusal.
    """
    with with_data(), torch.random.fork_rng(devices=[]), torch.enable_grad():
        try:
            first, weights = _begin(make)
            _step(first, weights, 0)
            second, others = _begin(make)
            for weight, other in zip(weights, others):
                other.data.copy_(weight.detach())
            second.load_state_dict(copy.deepcopy(first.state_dict()))
            _step(first, weights, TRIAL_STEPS)
            _step(second, others, TRIAL_STEPS)
        except Exception as error:
            reason = (str(error).partition("\n")[0] or type(error).__name__)[:MAX_REASON]
            if not given:
                raise TrainError(f"{label}: cannot be used for this training ({reason})") from None
            named = ", ".join(f"{name} = {value!r}" for name, value in given.items())
            raise TrainError(f"{label}: cannot be used with optimizer_args {named} ({reason})") from None
        equal = all(torch.equal(weight, other) for weight, other in zip(weights, others))
    if not equal:
        raise TrainError(f"{label}: a run could not be resumed: the same state gives other weights; choose another")


def group_facts(parameters: list[Any]) -> dict[str, Any]:
    """What Muon and its kin ask of each group: whether its weights are matrices."""
    return {"use_muon": all(parameter.ndim > 1 for parameter in parameters)}


def _begin(make: MakeOptimizer) -> tuple[torch.optim.Optimizer, list[Any]]:
    weights = [torch.nn.Parameter(torch.linspace(-1, 1, 12).reshape(shape)) for shape in ((4, 3), (3, 4))]
    group = {"params": weights, "names": ["a", "b"], **group_facts(weights)}
    optimizer = make([group])
    train = getattr(optimizer, "train", None)
    if train is not None:
        train()
    return optimizer, weights


def _step(optimizer: torch.optim.Optimizer, weights: list[Any], start: int) -> None:
    for number in range(start, start + TRIAL_STEPS):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _parameters(kind: type[torch.optim.Optimizer]) -> list[str]:
    """The names that the class and those it hands **kwargs on to take."""
    found: dict[str, None] = {}
    for each in kind.__mro__:
        if "__init__" not in vars(each) or each in (torch.optim.Optimizer, object):
            continue
        given = inspect.signature(each.__init__).parameters.values()
        plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        found |= dict.fromkeys(one.name for one in given if one.kind in plain and one.name not in ("self", *RESERVED))
        if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in given):
            break
    return list(found)


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
