"""Explain: why an entry is encoded although an earlier run had encoded the same source."""

from __future__ import annotations

from collections.abc import Container

from .reasons import DAMAGED, NEW, why_encoded
from .recipe import Planned, Recipe
from .report import Made
from .state import State


class Explainer:
    """Compares what an entry is made of now with what the state remembers of the same sample."""

    def __init__(self, recipe: Recipe, state: State, damaged: Container[bytes] = ()) -> None:
        self._recipe, self._state, self._damaged = recipe, state, damaged

    def explain(self, sample: Planned, field: str, key: bytes | None) -> Made:
        """`key` is None while the sample's content is unknown."""
        if key is not None and key in self._damaged:
            return Made(sample.name, field, DAMAGED)
        before = self._state.origins(sample.origin)
        if not before or not sample.content:
            return Made(sample.name, field, NEW)
        now = self._recipe.origins(sample)
        return Made(sample.name, field, why_encoded(now[field], before.get(field)))
