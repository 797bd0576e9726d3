"""Targets: the modules of a model that get an adapter, and their learning rates, ranks and alphas."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torch import nn

from ...errors import TrainError
from .factors import AdapterSettings

NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a part of a module's name


def select_modules(targets: str, names: Iterable[str], groups: Mapping[str, Iterable[str]]) -> list[str]:
    """Module names for `attention, blocks.0.*, !*.to_v`, in the model's order.

    An item is a preset's name, a pattern with * and ?, or `re:` and a regular expression (without commas) for the full
    name. `!` excludes what it matches; later items override earlier ones.
    """
    names, chosen = list(names), set()
    items = [item.strip() for item in re.split(r"[,\n]", targets) if item.strip()]
    if not items:
        raise TrainError(f"targets: empty; expected one of {', '.join(groups)}, or patterns")
    for item in items:
        matched = matching(item.lstrip("! "), names, groups, "targets")
        chosen = chosen - matched if item.startswith("!") else chosen | matched
    if not chosen:
        raise TrainError(f'targets: "{targets}" excludes every module; expected at least one to train')
    return [name for name in names if name in chosen]


def rates_of(
    group_rates: Mapping[str, float], names: Iterable[str], groups: Mapping[str, Iterable[str]]
) -> dict[str, float]:
    """Module name → the learning rate of the last pattern that matches it; modules without a match are missing."""
    names, rates = list(names), {}
    for pattern, rate in group_rates.items():
        rates |= dict.fromkeys(matching(pattern, names, groups, "group_rates"), rate)
    return rates


def matching(pattern: str, names: list[str], groups: Mapping[str, Iterable[str]], setting: str) -> set[str]:
    """The names that a preset or pattern selects; none is an error that lists presets and modules."""
    if pattern in groups:
        return set(groups[pattern])
    try:
        compiled = re.compile(pattern[3:] if pattern.startswith("re:") else fnmatch.translate(pattern))
    except re.error as error:
        raise TrainError(f'{setting}: "{pattern}" is not a valid regular expression: {error}') from error
    matched = {name for name in names if compiled.fullmatch(name)}
    if not matched:
        raise TrainError(_nothing(setting, pattern, names, groups))
    return matched


def targets_without(left_out: Sequence[str], names: Iterable[str]) -> str:
    """Items of `targets` that exclude these modules and no other of the names; few, because patterns stand for many."""
    others = list(set(names) - set(left_out))
    patterns = dict.fromkeys(_pattern(name, others) for name in left_out)
    return ", ".join(f"!{pattern}" for pattern in patterns)


def _pattern(name: str, others: Sequence[str]) -> str:
    """The name with * for as many of its numbers as possible, from the left, so that it matches none of the others."""
    count = len(NUMBER.findall(name))
    patterns = [NUMBER.sub("*", name, numbers) if numbers else name for numbers in range(count, -1, -1)]
    return next(p for p in patterns if not p.count("*") or not fnmatch.filter(others, p))


def _nothing(setting: str, pattern: str, names: list[str], groups: Mapping[str, Iterable[str]]) -> str:
    # Most names differ in numbers only; with * for them the whole model fits a few lines.
    shapes = sorted({NUMBER.sub("*", name) for name in names})
    near = difflib.get_close_matches(pattern, [*groups, *shapes], n=1)
    return (
        f'{setting}: "{pattern}" matches none of {len(names)} modules.'
        + (f' Closest: "{near[0]}".' if near else "")
        + f" Presets: {', '.join(groups)}. Modules: {', '.join(shapes)}"
    )


def convolutions(modules: Mapping[str, nn.Module]) -> dict[str, list[str]]:
    """The preset of layers with a kernel above 1×1, if the model has any."""
    found = [name for name, module in modules.items() if max(getattr(module, "kernel_size", ()) or (1,)) > 1]
    return {"convolutions": found} if found else {}


def settings_of(
    settings: AdapterSettings, names: list[str], groups: Mapping[str, list[str]]
) -> dict[str, AdapterSettings]:
    """The settings of each module: the last pattern that matches it gives its rank and alpha.

    A module without an alpha of its own has that of the settings, or its own rank, as in PEFT.
    """
    ranks, alphas = {}, {}
    for pattern, rank in settings.group_ranks.items():
        ranks |= dict.fromkeys(matching(pattern, names, groups, "group_ranks"), int(rank))
    for pattern, alpha in settings.group_alphas.items():
        alphas |= dict.fromkeys(matching(pattern, names, groups, "group_alphas"), alpha)
    return {
        name: replace(settings, rank=ranks.get(name, settings.rank), alpha=alphas.get(name, settings.alpha))
        for name in names
    }
