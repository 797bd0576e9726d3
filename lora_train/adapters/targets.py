"""Targets: the modules of a model that get an adapter, and their learning rates."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence

from ...errors import TrainError

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
