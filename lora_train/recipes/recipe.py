"""A recipe: what it sets and why, and what remains of it beside a person's own settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...dataset_cache import closest_name
from ...errors import TrainError
from ..config import TRAIN_SETTINGS, TrainConfig
from ..config_file import RENAMED_SETTINGS
from .table import Advice


@dataclass(frozen=True)
class Recipe:
    """Settings by name, each with its reason."""

    name: str
    about: str
    advice: Mapping[str, Advice]

    def values(self, own: Iterable[str] = ()) -> dict[str, Any]:
        """What it sets, except for settings that a person has set, under today's names or old ones."""
        taken = {RENAMED_SETTINGS.get(name, name) for name in own}
        return {name: advice.value for name, advice in self.advice.items() if name not in taken}

    def without(self, names: Iterable[str], known: Iterable[str]) -> Recipe:
        """The recipe without these settings, which keep their defaults; names that are not `known` are refused."""
        known, left = tuple(known), [RENAMED_SETTINGS.get(name, name) for name in names]
        for name in left:
            if name not in known:
                raise TrainError(f'without: unknown setting "{name}"{closest_name(name, known)}')
        out = [name for name in self.advice if name in left]
        advice = {name: advice for name, advice in self.advice.items() if name not in out}
        return replace(self, name=" without ".join([self.name, *filter(None, [", ".join(out)])]), advice=advice)

    def explain(self, own: Mapping[str, Any] | None = None) -> list[str]:
        """What it changes and why, for people; own settings are shown where they win."""
        yours = {RENAMED_SETTINGS.get(name, name): value for name, value in (own or {}).items()}
        lines = [f"Recipe {self.name}", *self.about.splitlines()]
        for name, advice in self.advice.items():
            if name in yours:
                lines.append(f"{name} = {show(yours[name])}: your own setting; the recipe has {show(advice.value)}")
            else:
                lines.append(": ".join(filter(None, [f"{name} = {show(advice.value)}", advice.why])))
        return lines

    def note(self, own: Mapping[str, Any]) -> str:
        """One line for the notes of a run."""
        yours = {RENAMED_SETTINGS.get(name, name): value for name, value in own.items()}
        won = [f"{name} = {show(yours[name])}" for name in self.advice if name in yours]
        return f"Recipe {self.name}; your own settings win: {', '.join(won)}" if won else f"Recipe {self.name}"


def show(value: Any) -> str:
    """A value as TOML has it."""
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False, default=str)


def joined(name: str, about: str, parts: Iterable[Mapping[str, Advice]]) -> Recipe:
    """Later parts win. Together they must be a possible training."""
    found: dict[str, Advice] = {}
    for part in parts:
        found.update(part)
    try:
        TrainConfig(**{key: advice.value for key, advice in found.items() if key in TRAIN_SETTINGS})
    except TrainError as error:
        raise TrainError(f"recipe {name}: {error}; change one of them in the recipe") from None
    return Recipe(name, about, found)
