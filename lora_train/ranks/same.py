"""Whether all ranks train the same: dataset, settings, versions and model are compared before the first step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import TrainError
from .ranks import Ranks

_NAMED = 3  # differences that are named


def check_same(ranks: Ranks, facts: Mapping[str, Any]) -> None:
    """Refuse ranks whose facts differ from those of rank 0, with the rank and the difference."""
    if ranks.size == 1:
        return
    first, *others = [json.loads(text) for text in ranks.gather(json.dumps(facts, sort_keys=True))]
    for rank, other in enumerate(others, 1):
        found = list(_differences(first, other))
        if found:
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            raise TrainError(
                f"rank {rank} differs from rank 0: {'; '.join(found[:_NAMED])}{more}. All ranks need the same dataset, "
                "settings, model and versions"
            )


def _differences(first: Any, other: Any, place: str = "") -> Iterator[str]:
    if not (isinstance(first, Mapping) and isinstance(other, Mapping)):
        if first != other:
            yield f"{place} is {_short(other)}, not {_short(first)}"
        return
    for name in dict.fromkeys([*first, *other]):
        inner = f"{place} {name}".strip()
        yield from _differences(first.get(name), other.get(name), inner)


def _short(value: Any) -> str:
    words = "missing" if value is None else str(value)
    return words if len(words) <= 60 else f"{words[:60]}…"
