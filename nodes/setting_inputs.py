"""Settings as node inputs, made from the tables of settings, so that each has one name, limits and help text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comfy_api.latest import io

from ..dataset_cache import COLOR, COLORS, NUMBERS, OPTIONS, Setting, parse_setting
from ..lora_train import RENAMED_SETTINGS, TRAIN_SETTINGS
from . import setting_groups
from .host import HOST_SETTINGS
from .host.app import find_lora, list_loras

ALL_SETTINGS: dict[str, Setting] = {**TRAIN_SETTINGS, **HOST_SETTINGS}
MAIN = ("name", "mode", "steps", "epochs", "learning_rate", "rank", "batch_size", "optimizer", "seed")
# Settings that came after version 0.2. They are the last inputs: workflows store the values of widgets by position.
LATER = (
    "batch_split",
    "group_ranks",
    "group_alphas",
    "training_adapter",
    "other_optimizer",
    "optimizer_args",
    "lora_plus",
    "scale_weight_norms",
    "huber_schedule",
    "resolution_shift",
    "multires_noise",
    "multires_discount",
    "input_perturbation",
    "normalise_masks",
    "preservation_weight",
    "preservation_share",
    "preservation_caption",
    "guidance_target",
    "guidance_schedule",
    "activation_offload",
    "offload_share",
    "compile",
    "attention",
    "export_every",
    "export_epochs",
    "keep_exports",
    "keep_exports_by",
    "trigger_words",
    "tag_statistics",
)
# Settings without an input: a node trains in one process, and this one is for several.
ABSENT = ("deterministic",)
FILES = ("start_from", "training_adapter")  # paths; on nodes, LoRAs from ComfyUI's list
DEFAULTS = {"name": "my_lora"}  # on nodes; the command line names a run after the output file
MOST = 2**31 - 1


def main_inputs() -> list[io.Input]:
    """The inputs on the training node itself."""
    return [_train_input(ALL_SETTINGS[name], advanced=False) for name in MAIN]


def further_inputs(advanced: bool) -> list[io.Input]:
    """All other training settings."""
    names = [name for name in ALL_SETTINGS if name not in (*MAIN, *LATER, *ABSENT)]
    return [_train_input(ALL_SETTINGS[name], advanced) for name in (*names, *LATER)]


def read_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Training settings from a node's inputs, with texts parsed. Their names are checked later."""
    return {name: _value(name, value) for name, value in values.items() if value is not None}


def changed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that differ from their defaults."""
    return {
        name: value for name, value in values.items() if name not in ALL_SETTINGS or value != ALL_SETTINGS[name].default
    }


def read_inputs(settings: Mapping[str, Setting], values: Mapping[str, Any]) -> dict[str, Any]:
    """Encoding settings from a node's inputs. A combo gives text even for numbers."""
    found = {name: value for name, value in values.items() if value is not None}
    texts = {name for name, value in found.items() if isinstance(value, str) and name in settings}
    numbers = {name: parse_setting(settings[name], found[name]) for name in texts if settings[name].type is int}
    return {**found, **numbers}


def setting_input(
    setting: Setting, optional: bool = False, advanced: bool = False, extra: Mapping[str, Any] | None = None
) -> io.Input:
    """The input for a setting, with its widget's own range and step if it has them."""
    limits = setting.limits
    default, shared = setting.default, {"optional": optional, "tooltip": _sentence(limits.about)}
    if advanced:
        shared["advanced"] = True
    if extra:
        shared["extra_dict"] = dict(extra)
    if setting.type == COLOR:
        names = {color: name for name, color in COLORS.items()}
        return io.Combo.Input(setting.name, options=list(COLORS), default=names[default], **shared)
    if limits.choices:
        return io.Combo.Input(setting.name, options=list(limits.choices), default=str(default), **shared)
    if setting.type is bool:
        return io.Boolean.Input(setting.name, default=default, **shared)
    low, high = limits.shown or _range(setting)
    if setting.type in (int, NUMBERS):
        if limits.step:
            shared["step"] = int(limits.step)
        default = default[0] if setting.type == NUMBERS else default or 0
        return io.Int.Input(setting.name, default=default, min=int(low), max=int(high), **shared)
    if setting.type is float:
        step = limits.step or (default / 10 if 0 < default < 0.01 else 0.01)
        if not limits.step:
            shared["round"] = False
        return io.Float.Input(setting.name, default=default, min=low, max=high, step=step, **shared)
    text = DEFAULTS.get(setting.name, default or "")
    if setting.type in (tuple, dict, OPTIONS):
        shared["multiline"] = True
    return io.String.Input(setting.name, default=text, **shared)


def _range(setting: Setting) -> tuple[float, float]:
    limits = setting.limits
    return max(limits.low, limits.above, -MOST), min(limits.high, MOST)


def _train_input(setting: Setting, advanced: bool) -> io.Input:
    # Optional, although all have widgets: a workflow from another version that lacks one still runs, with the default.
    shown = setting_groups.shown_with(setting)
    shared = {
        "optional": True, "advanced": advanced, "tooltip": _sentence(setting.limits.about), "extra_dict": shown,
    }  # fmt: skip
    if setting.name in FILES:
        files = list_loras()
        return io.Combo.Input(setting.name, options=files, default=files[0], **shared)
    if setting.name == "seed":
        # Fixed: the front end would draw a new seed after every run, and the next run would train again.
        fixed = io.ControlAfterGenerate.fixed
        low, high = int(setting.limits.low), int(setting.limits.high)
        return io.Int.Input(
            setting.name, default=setting.default, min=low, max=high, control_after_generate=fixed, **shared
        )
    return setting_input(setting, optional=True, advanced=advanced, extra=shown)


def _value(name: str, value: Any) -> Any:
    known = ALL_SETTINGS.get(RENAMED_SETTINGS.get(name, name))
    if known is None or not isinstance(value, str):
        return value
    if known.name in FILES:
        return find_lora(value, known.name)
    return parse_setting(known, value) if known.type in (tuple, dict, OPTIONS) else value


def _sentence(about: str) -> str:
    return f"{about[0].upper()}{about[1:]}."
