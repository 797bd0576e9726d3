"""Settings as inputs of a node: made from the engine's own list, so that each has one name, limit and explanation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from comfy_api.latest import io

from ..dataset_cache import Setting, parse_setting
from ..lora_train import RENAMED_SETTINGS, TRAIN_SETTINGS
from .host import HOST_SETTINGS
from .host.app import find_lora, list_loras

ALL_SETTINGS: dict[str, Setting] = {**TRAIN_SETTINGS, **HOST_SETTINGS}
MAIN = ("name", "mode", "steps", "epochs", "learning_rate", "rank", "batch_size", "optimizer", "seed")
FILE = "start_from"  # the one setting that is a path: on nodes, a LoRA out of the host's list
DEFAULTS = {"name": "my_lora"}  # where a node has to say something that a command line may leave open
MOST = 2**31 - 1


def main_inputs() -> list[io.Input]:
    """What stands on the training node for everyone."""
    return [_input(ALL_SETTINGS[name], advanced=False) for name in MAIN]


def further_inputs(advanced: bool) -> list[io.Input]:
    """All other settings."""
    return [_input(setting, advanced) for setting in ALL_SETTINGS.values() if setting.name not in MAIN]


def read_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a node's inputs hold: texts become what they mean. Names are checked by whoever uses them."""
    return {name: _value(name, value) for name, value in values.items() if value is not None}


def changed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not as they would be without the node."""
    return {
        name: value for name, value in values.items() if name not in ALL_SETTINGS or value != ALL_SETTINGS[name].default
    }


def _value(name: str, value: Any) -> Any:
    known = ALL_SETTINGS.get(RENAMED_SETTINGS.get(name, name))
    if known is None or not isinstance(value, str):
        return value
    if known.name == FILE:
        return find_lora(value)
    return parse_setting(known, value) if known.type in (tuple, dict) else value


def _input(setting: Setting, advanced: bool) -> io.Input:
    limits = setting.limits
    # Optional, though every one has a widget: a workflow of another version that lacks one still runs, by the default.
    shared = {"optional": True, "advanced": advanced, "tooltip": _sentence(limits.about)}
    if setting.name == FILE:
        files = list_loras()
        return io.Combo.Input(setting.name, options=files, default=files[0], **shared)
    if limits.choices:
        return io.Combo.Input(setting.name, options=list(limits.choices), default=setting.default, **shared)
    if setting.type is bool:
        return io.Boolean.Input(setting.name, default=setting.default, **shared)
    if setting.type is int:
        low, high = (int(limits.low) if math.isfinite(limits.low) else -MOST), int(min(limits.high, MOST))
        if setting.name == "seed":
            # The front end would draw a new one after every run, and every run would train anew.
            high, shared["control_after_generate"] = int(limits.high), io.ControlAfterGenerate.fixed
        return io.Int.Input(setting.name, default=setting.default, min=low, max=high, **shared)
    if setting.type is float:
        low, high = max(limits.low, limits.above, -MOST), min(limits.high, MOST)
        step = setting.default / 10 if 0 < setting.default < 0.01 else 0.01
        return io.Float.Input(
            setting.name, default=setting.default, min=low, max=high, step=step, round=False, **shared
        )
    return io.String.Input(
        setting.name,
        default=DEFAULTS.get(setting.name, setting.default or ""),
        multiline=setting.type in (tuple, dict),
        **shared,
    )


def _sentence(about: str) -> str:
    return f"{about[0].upper()}{about[1:]}."
