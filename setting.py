"""A setting: its name, type, default, limits and help text, declared once; how a value or a text becomes one.

Node inputs, command-line flags, TOML files and the tables in docs/ are made from settings.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import SettingError

NUMBERS = tuple[int, ...]  # the type of settings that are lists of whole numbers
DECIMALS = tuple[float, ...]  # the type of settings that are lists of numbers
OPTIONS = dict[str, object]  # the type of a table of values of any kind
COLOR = tuple[int, int, int]  # red, green and blue
COLORS = {"white": (255, 255, 255), "grey": (128, 128, 128), "black": (0, 0, 0)}


@dataclass(frozen=True)
class Limits:
    """What a setting accepts besides its type, and how it is presented."""

    about: str
    group: str
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    choices: tuple[str, ...] = ()
    decides: bool = True  # a resumed run with another value would be another run
    shown: tuple[float, float] | None = None  # the range of a node's widget, if narrower than the valid one
    step: float = 0.0  # of a node's widget; 0: by type


@dataclass(frozen=True)
class Setting:
    """One setting as an entry point shows it. `old_names` are still read."""

    name: str
    type: Any  # a key of the tables below
    default: Any
    limits: Limits
    old_names: tuple[str, ...] = ()


def declare(
    default: Any, about: str, group: str, *, name: str = "", old_names: tuple[str, ...] = (), **limits: Any
) -> Any:
    """A dataclass field that is a setting. `name` is given if it differs from the field's own."""
    metadata = {"setting": (name, Limits(about, group, **limits), old_names)}
    return dataclasses.field(default=default, metadata=metadata)


def settings_of(kind: type) -> dict[str, Setting]:
    """The settings of a dataclass, by field."""
    found = {}
    for field in dataclasses.fields(kind):
        if "setting" in field.metadata:
            name, limits, old_names = field.metadata["setting"]
            found[field.name] = Setting(name or field.name, type_of(field.type), field.default, limits, old_names)
    return found


def check_settings(values: Any) -> None:
    """Check all settings of a new dataclass instance, and keep each in its own type."""
    for field, setting in settings_of(type(values)).items():
        value = getattr(values, field)
        if value is None and setting.default is None:
            continue
        object.__setattr__(values, field, check_setting(setting, value))


def check_setting(setting: Setting, value: Any) -> Any:
    """The value in the setting's own type and within its limits; anything else is a SettingError."""
    name = setting.name
    value = _typed(name, value, setting.type)
    limits = setting.limits
    if limits.choices and str(value) not in limits.choices:
        hint = closest_name(str(value), limits.choices)
        raise SettingError(f'{name} = "{value}": expected one of {", ".join(limits.choices)}{hint}')
    if setting.type in (int, float):
        _within(name, value, limits)
    elif setting.type in (NUMBERS, DECIMALS):
        for number in value:
            _within(name, number, limits)
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


def type_of(annotation: Any) -> Any:
    """The type of a setting that is declared as a dataclass field with this annotation."""
    return _TYPES[str(annotation).removesuffix(" | None")]


def _typed(name: str, value: Any, kind: Any) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float and number:
        return float(value)
    if kind is int and number and float(value).is_integer():
        return int(value)
    if kind is tuple and isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if kind == NUMBERS and isinstance(value, (list, tuple)):
        return tuple(_typed(name, item, int) for item in value)
    if kind == DECIMALS and isinstance(value, (list, tuple)):
        return tuple(_typed(name, item, float) for item in value)
    if kind == COLOR:
        return _color(name, value)
    if kind is dict and isinstance(value, Mapping):
        return {str(key): _typed(f"{name}.{key}", item, float) for key, item in value.items()}
    if kind == OPTIONS and isinstance(value, Mapping):
        return {str(key): _option(f"{name}.{key}", item) for key, item in value.items()}
    if kind in (bool, str) and isinstance(value, kind):
        return value
    raise SettingError(f"{name} = {value!r} ({type(value).__name__}): expected {_KINDS[kind]}")


def _option(name: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_option(name, item) for item in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise SettingError(f"{name} = {value!r} ({type(value).__name__}): expected a number, true or false, text or a list")


def _color(name: str, value: Any) -> tuple[int, int, int]:
    if isinstance(value, str) and value in COLORS:
        return COLORS[value]
    parts = value if isinstance(value, (list, tuple)) else ()
    if len(parts) == 3 and all(type(part) is int and 0 <= part <= 255 for part in parts):
        return parts[0], parts[1], parts[2]
    raise SettingError(f"{name} = {value!r}: expected {_KINDS[COLOR]}")


def _within(name: str, value: float, limits: Limits) -> None:
    if math.isfinite(value) and value > limits.above and limits.low <= value <= limits.high:
        return
    parts = ["a finite number"] if isinstance(value, float) else ["a whole number"]
    parts += [f"above {limits.above:g}"] if limits.above > -math.inf else []
    parts += [f"of at least {limits.low:g}"] if limits.low > -math.inf else []
    parts += [f"{'' if parts[1:] else 'of '}at most {_shown(limits.high)}"] if limits.high < math.inf else []
    raise SettingError(f"{name} = {value}: expected {' '.join(parts[:2])}{''.join(f', {part}' for part in parts[2:])}")


def _shown(number: float) -> str:
    if isinstance(number, int):
        return f"{number:,}"
    return f"{number:,.0f}" if number.is_integer() else f"{number:g}"


def _parse_bool(text: str) -> bool:
    values = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if text.strip().lower() not in values:
        raise ValueError(text)
    return values[text.strip().lower()]


def _parse_table(text: str) -> dict[str, float]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    return {key.strip(): float(value) for key, _, value in pairs}


def _parse_options(text: str) -> dict[str, Any]:
    # Commas inside of brackets belong to a value: betas=(0.9, 0.99).
    pairs = [part.partition("=") for part in re.split(r"[,\n](?![^(\[]*[)\]])", text) if part.strip()]
    if any(not equals or not key.strip() for key, equals, _ in pairs):
        raise ValueError(text)
    return {key.strip(): _parse_option(value.strip()) for key, _, value in pairs}


def _parse_option(text: str) -> Any:
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.replace("|", "\n").splitlines() if line.strip())


def _parse_decimals(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in re.split(r"[,;\s]+", text) if part)


def _parse_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.split(r"[,;\s]+", text) if part)


_TYPES = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "tuple[str, ...]": tuple,
    "tuple[int, ...]": NUMBERS,
    "tuple[float, ...]": DECIMALS,
    "tuple[int, int, int]": COLOR,
    "dict[str, float]": dict,
    "dict[str, object]": OPTIONS,
}
_PARSERS: dict[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    bool: _parse_bool,
    str: str,
    tuple: _parse_list,
    NUMBERS: _parse_numbers,
    DECIMALS: _parse_decimals,
    COLOR: str,
    dict: _parse_table,
    OPTIONS: _parse_options,
}
_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple: "a list of texts (on the command line: one|two)",
    NUMBERS: "a list of whole numbers, such as 512, 768",
    DECIMALS: "a list of numbers, such as 0.6, 1",
    COLOR: f"{', '.join(COLORS)}, or [red, green, blue] from 0 to 255",
    dict: "a table of numbers (on the command line: name=1.5,other=2)",
    OPTIONS: "a table (on the command line: name=1.5,other=true,betas=(0.9,0.99))",
}
