"""The combinations of a sweep: `--set rank=8,16` as values, every combination of them, and a name for each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b
from typing import Any

from ...lora_train import RENAMED_SETTINGS, TRAIN_SETTINGS, check_run_name, load_config
from ...setting import Setting, check_setting, closest_name, parse_setting
from ..parser import UsageError, usage_errors

_SHORT = {"learning_rate": "lr"}
_NOT_SWEPT = {"name", "mode", "accept_changes"}
_PLAIN = re.compile(r"[\w.+-]{1,40}")
_DIGITS = 3  # of a number that a search chooses


@dataclass(frozen=True)
class Range:
    """Numbers that a search chooses from: `1e-5..1e-3:log`."""

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Axis:
    """A setting that a sweep varies, and its values: those of a list, or a range."""

    setting: Setting
    values: tuple[Any, ...] = ()
    range: Range | None = None

    @property
    def name(self) -> str:
        return self.setting.name

    def round(self, value: Any) -> Any:
        """A number that a search has chosen, short enough for a name."""
        return float(f"{value:.{_DIGITS - 1}e}") if isinstance(value, float) else value


@dataclass(frozen=True)
class Combination:
    """One run of a sweep: its name, and the settings in which it differs from the others."""

    name: str
    settings: Mapping[str, Any]


def parse_axes(texts: Iterable[str]) -> list[Axis]:
    """The settings that vary, in the order of the table of settings."""
    axes: dict[str, Axis] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        name = RENAMED_SETTINGS.get(name, name)
        if not equals:
            raise UsageError(f"--set {text}: expected NAME=VALUE,VALUE,…, for example rank=8,16")
        if name not in TRAIN_SETTINGS:
            raise UsageError(f'--set {text}: unknown setting "{name}"{closest_name(name, TRAIN_SETTINGS)}')
        if name in _NOT_SWEPT:
            raise UsageError(f"--set {text}: every run of a sweep has its own {name}; vary another setting")
        if name in axes:
            raise UsageError(f"--set {text}: {name} is given twice; give all its values in one --set")
        axes[name] = _parse_axis(TRAIN_SETTINGS[name], values, text)
    return [axes[name] for name in TRAIN_SETTINGS if name in axes]


def combine(stem: str, axes: Iterable[Axis], base: Mapping[str, Any]) -> list[Combination]:
    """Every combination of the values, each valid together with the settings that all have."""
    axes = list(axes)
    for axis in axes:
        if axis.range is not None:
            raise UsageError(f"--set {axis.name}: a range has no end of values; add --search N, or list them")
    chosen = [
        combination(stem, dict(zip((axis.name for axis in axes), values)))
        for values in itertools.product(*(axis.values for axis in axes))
    ]
    for one in chosen:
        check(one, base)
    return chosen


def combination(stem: str, settings: Mapping[str, Any]) -> Combination:
    """The run with these values: my_lora-rank8-lr1e-4."""
    parts = [f"{_SHORT.get(name, name)}{_short_text(value)}" for name, value in settings.items()]
    return Combination("-".join([stem, *parts]), settings)


def check(one: Combination, base: Mapping[str, Any]) -> None:
    """Refuse settings that are invalid, alone or together, and a name that no folder can have."""
    with usage_errors():
        check_run_name(one.name, new=True)
        load_config({**base, **one.settings}, one.name, notice=lambda words: None)


def _parse_axis(setting: Setting, values: str, text: str) -> Axis:
    found = re.fullmatch(r"(.+)\.\.(.+?)(:log)?", values.strip())
    if found and setting.type in (int, float):
        low, high = (_parse_value(setting, end) for end in found.groups()[:2])
        if low >= high:
            raise UsageError(f"--set {text}: expected a range from a lower to a higher number")
        if found[3] and low <= 0:
            raise UsageError(f"--set {text}: a logarithmic range begins above 0")
        return Axis(setting, range=Range(low, high, bool(found[3])))
    # Values that contain commas are separated by semicolons.
    parts = [part for part in values.split(";" if ";" in values else ",") if part.strip()]
    chosen = tuple(_parse_value(setting, part) for part in parts)
    if not chosen:
        raise UsageError(f"--set {text}: has no values")
    if len({_short_text(value).casefold() for value in chosen}) < len(chosen):
        raise UsageError(f"--set {text}: a value is given twice")
    return Axis(setting, chosen)


def _parse_value(setting: Setting, text: str) -> Any:
    with usage_errors():
        return check_setting(setting, parse_setting(setting, text.strip()))


def _short_text(value: Any) -> str:
    """A value as part of a name: 8, 1e-4, 0.5, _on, _cosine. Two values never have the same."""
    if isinstance(value, bool):
        return "_on" if value else "_off"
    if isinstance(value, float):
        return _short_number(value)
    if isinstance(value, int):
        return str(value)
    text = value if isinstance(value, str) else repr(value)
    if _PLAIN.fullmatch(text):
        return f"_{text}"
    readable = re.sub(r"[^\w.+-]+", "_", text)[:20].strip("_.")
    return f"_{readable}-{blake2b(text.encode(errors='surrogatepass'), digest_size=3).hexdigest()}"


def _short_number(value: float) -> str:
    """The shorter of 0.0001 and 1e-4; both have all digits."""
    plain = f"{value:.0f}" if value.is_integer() and abs(value) < 1e6 else repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    number = "".join(map(str, digits))
    places = int(exponent) + len(number) - 1
    return min(plain, f"{'-' * sign}{number[0]}{'.' * bool(number[1:])}{number[1:]}e{places}", key=len)
