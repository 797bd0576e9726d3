"""A setting: its type, its limits, and how a value or a text becomes one, or is refused with place and expectation."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import SettingError


@dataclass(frozen=True)
class Limits:
    """What a setting may hold beyond its type."""

    about: str
    group: str
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    choices: tuple[str, ...] = ()
    decides: bool = True  # a resumed run with another value would be another run


@dataclass(frozen=True)
class Setting:
    """One setting as an entry point shows it."""

    name: str
    type: type
    default: Any
    limits: Limits


def check_setting(setting: Setting, value: Any) -> Any:
    """The value in the setting's own type and within its limits; anything else is a SettingError."""
    name = setting.name
    value = _typed(name, value, setting.type)
    limits = setting.limits
    if limits.choices and value not in limits.choices:
        hint = closest_name(value, limits.choices)
        raise SettingError(f'{name} = "{value}": expected one of {", ".join(limits.choices)}{hint}')
    if setting.type in (int, float):
        _within(name, value, limits)
    elif setting.type is dict:
        for key, number in value.items():
            _within(f"{name}.{key}", number, limits)
    return value


def parse_setting(setting: Setting, text: str) -> Any:
    """The value that a command line's or a widget's text means for this setting."""
    try:
        return _PARSERS[setting.type](text)
    except ValueError:
        raise SettingError(f'{setting.name} = "{text}": expected {_KINDS[setting.type]}') from None


def closest_name(name: str, known: Iterable[str]) -> str:
    """'; did you mean "rank"?', or nothing when no known name is near."""
    by_lower = {word.lower(): word for word in known}
    match = difflib.get_close_matches(name.lower(), list(by_lower), 1, 0.6)
    return f'; did you mean "{by_lower[match[0]]}"?' if match else ""


def _typed(name: str, value: Any, kind: type) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float and number:
        return float(value)
    if kind is int and number and float(value).is_integer():
        return int(value)
    if kind is tuple and isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if kind is dict and isinstance(value, Mapping):
        return {str(key): _typed(f"{name}.{key}", item, float) for key, item in value.items()}
    if kind in (bool, str) and isinstance(value, kind):
        return value
    raise SettingError(f"{name} = {value!r} ({type(value).__name__}): expected {_KINDS[kind]}")


def _within(name: str, value: float, limits: Limits) -> None:
    if math.isfinite(value) and value > limits.above and limits.low <= value <= limits.high:
        return
    parts = ["a finite number"] if isinstance(value, float) else ["a whole number"]
    parts += [f"above {limits.above:g}"] if limits.above > -math.inf else []
    parts += [f"of at least {limits.low:g}"] if limits.low > -math.inf else []
    parts += [f"at most {limits.high:g}"] if limits.high < math.inf else []
    raise SettingError(f"{name} = {value}: expected {' '.join(parts[:2])}{''.join(f', {part}' for part in parts[2:])}")


def _parse_bool(text: str) -> bool:
    values = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if text.strip().lower() not in values:
        raise ValueError(text)
    return values[text.strip().lower()]


def _parse_table(text: str) -> dict[str, float]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    return {key.strip(): float(value) for key, _, value in pairs}


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.replace("|", "\n").splitlines() if line.strip())


_PARSERS: dict[type, Callable[[str], Any]] = {
    int: int,
    float: float,
    bool: _parse_bool,
    str: str,
    tuple: _parse_list,
    dict: _parse_table,
}
_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple: "a list of texts (on the command line: one|two)",
    dict: "a table of numbers (on the command line: name=1.5,other=2)",
}
