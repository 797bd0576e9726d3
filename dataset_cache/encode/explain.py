"""Explain: why entries are encoded although an earlier run had encoded the same sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..sources import Origin, State
from .reasons import NEW, why_encoded
from .recipe import Planned, Recipe
from .report import Made

Entry = tuple[Planned, str, bytes | None]  # sample, field, key; no key while the sample's content is unknown


def explain(entries: Iterable[Entry], recipe: Recipe, state: State, dropped: Mapping[bytes, str]) -> list[Made]:
    """The reason of each entry, in order: what it is made of now against what the state remembers of its sample.

    `dropped` entries had been stored, and were taken out for a reason that is known.
    """
    entries = list(entries)
    before = state.origins({sample.origin for sample, _, _ in entries})
    return [Made(s.name, f, dropped.get(key) or _why(s, f, before.get(s.origin), recipe)) for s, f, key in entries]


def _why(sample: Planned, field: str, before: dict[str, Origin] | None, recipe: Recipe) -> str:
    if not before or not sample.content:
        return NEW
    return why_encoded(recipe.origins(sample)[field], before.get(field))
