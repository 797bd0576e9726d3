"""Targets: which modules of a model get an adapter, and with which learning rate."""

from __future__ import annotations

import difflib
import fnmatch
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..errors import TrainError


@dataclass(frozen=True)
class Rule:
    """One item of a target list: a preset or a pattern, taken in or left out."""

    pattern: str
    learning_rate: float | None = None
    leave_out: bool = False


def parse(text: str) -> tuple[Rule, ...]:
    """`attention, blocks.0.* = 1e-5, !*.to_v` → rules. Later rules win over earlier ones.

    An item is a preset's name, a pattern with * and ?, or `re:` and a regular expression that matches the whole name;
    `!` leaves out what it matches, `= number` gives its modules a learning rate of their own.
    """
    rules = tuple(_rule(item) for item in re.split(r"[,\n]", text) if item.strip())
    if not rules:
        raise TrainError('targets: found nothing; expected a preset such as "attention", or patterns')
    return rules


def select(rules: Iterable[Rule], names: Iterable[str], groups: Mapping[str, Iterable[str]]) -> dict[str, float | None]:
    """Module name → its own learning rate (or None), in the model's order."""
    names, chosen = list(names), {}
    for rule in rules:
        matched = list(groups[rule.pattern]) if rule.pattern in groups else _matching(rule.pattern, names)
        if not matched:
            raise TrainError(_nothing(rule.pattern, names, groups))
        for name in matched:
            chosen.pop(name, None)
            if not rule.leave_out:
                chosen[name] = rule.learning_rate
    if not chosen:
        raise TrainError("targets: every module was left out again; expected at least one to train")
    return {name: chosen[name] for name in names if name in chosen}


def _rule(item: str) -> Rule:
    # A regular expression may hold "=" itself, as in (?=…); a number never holds a bracket.
    match = re.fullmatch(r"(.+?)\s*=\s*([^=()]*)", item.strip())
    pattern, rate = (match[1], _rate(item, match[2])) if match else (item.strip(), None)
    return Rule(pattern.lstrip("!").strip(), rate, pattern.startswith("!"))


def _rate(item: str, text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not (math.isfinite(rate) and rate > 0):
        raise TrainError(f'targets: found the learning rate "{text}" in "{item.strip()}", expected a number above 0')
    return rate


def _matching(pattern: str, names: list[str]) -> list[str]:
    try:
        compiled = re.compile(pattern[3:] if pattern.startswith("re:") else fnmatch.translate(pattern))
    except re.error as error:
        raise TrainError(f'targets: "{pattern}" is no regular expression: {error}') from error
    return [name for name in names if compiled.fullmatch(name)]


def _nothing(pattern: str, names: list[str], groups: Mapping[str, Iterable[str]]) -> str:
    # Numbers make most of the names; with them as * the whole model fits a few lines.
    shapes = sorted({re.sub(r"(?<![^.])\d+(?![^.])", "*", name) for name in names})
    near = difflib.get_close_matches(pattern, [*groups, *shapes], n=1)
    return (
        f'targets: "{pattern}" matches none of {len(names)} modules.'
        + (f' Near: "{near[0]}".' if near else "")
        + f" Presets: {', '.join(groups)}. Modules: {', '.join(shapes)}"
    )
