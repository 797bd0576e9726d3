"""Strangers: facts that somebody else may have written, cut to what a page can take and JSON can hold."""

import math
from typing import Any

_DEPTH, _ITEMS, _TEXT = 8, 200, 2000


def cut(value: Any, depth: int = _DEPTH) -> Any:
    """The value as plain JSON: long texts and lists end early, and a number that is none, or endless, becomes null."""
    if isinstance(value, str):
        return cut_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int)):
        return value if value is None or value.bit_length() <= 64 else None
    if depth and isinstance(value, dict):
        return {cut_text(str(key)): cut(item, depth - 1) for key, item in list(value.items())[:_ITEMS]}
    if depth and isinstance(value, (list, tuple)):
        return [cut(item, depth - 1) for item in value[:_ITEMS]]
    return "…"


def cut_text(text: str, length: int = _TEXT) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def as_dict(value: Any) -> dict[str, Any]:
    """What a stranger may have put there instead counts as nothing."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
