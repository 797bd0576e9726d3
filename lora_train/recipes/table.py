"""One TOML file of a recipe: settings with a reason each, and what else the file says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...dataset_cache import Setting, SettingError, check_setting, closest_name
from ...errors import TrainError
from ..config import TRAIN_SETTINGS
from ..config_file import RENAMED_SETTINGS, read_toml

MOST_BYTES = 64 * 1024
# A recipe may come from other people: it names no files, and the run and what its images show are the user's.
OWN = ("name", "mode", "accept_changes", "start_from", "training_adapter", "trigger_words", "sample_captions")

KEYS = {
    "title": str, "about": str, "recipe": str, "families": list, "memory": dict, "settings": dict, "host": dict,
    "for": dict,
}  # fmt: skip


@dataclass(frozen=True)
class Advice:
    """The value of a setting, and why."""

    value: Any
    why: str = ""
    source: str = ""  # the file or card that says so


@dataclass(frozen=True)
class Table:
    """The content of one file."""

    title: str = ""
    about: str = ""
    recipe: str = ""  # another recipe, which this one changes
    families: tuple[str, ...] = ()  # classes of ComfyUI's models, or names of models, that a base is for
    memory: Mapping[str, float] = field(default_factory=dict)  # GB at the peak, by what is done to save memory
    settings: Mapping[str, Advice] = field(default_factory=dict)  # the engine's and the host's
    by_base: Mapping[str, Mapping[str, Advice]] = field(default_factory=dict)  # for some bases only


def read_table(path: Path, known: Mapping[str, Setting]) -> Table:
    """A file with every value checked. Errors name the file and the key.

    Settings below [host] are those of the program that runs the model: they are left out for a caller that knows none.
    """
    if path.is_file() and path.stat().st_size > MOST_BYTES:
        raise TrainError(f"{path.name}: {path.stat().st_size:,} bytes; a recipe has at most {MOST_BYTES:,}")
    found = read_toml(path)
    source = path.stem if path.is_relative_to(Path(__file__).parent) else path.name
    for key, value in found.items():
        _check_key(path.name, key, value)
    engine = {name: setting for name, setting in known.items() if name in TRAIN_SETTINGS}
    host = {name: setting for name, setting in known.items() if name not in TRAIN_SETTINGS}
    own = _advice(path.name, "settings", source, found.get("settings", {}), engine)
    own |= _advice(path.name, "host", source, found.get("host", {}), host) if host else {}
    by_base = {
        base: _advice(path.name, f"for.{base}", source, values, engine) for base, values in found.get("for", {}).items()
    }
    plain = {key: found[key] for key in ("title", "about", "recipe", "memory") if key in found}
    return Table(**plain, families=tuple(found.get("families", ())), settings=own, by_base=by_base)


def _check_key(file: str, key: str, value: Any) -> None:
    if key not in KEYS:
        hint = closest_name(key, KEYS) or f"; expected one of {', '.join(KEYS)}"
        raise TrainError(f'{file}: unknown key "{key}"{hint}; settings belong below [settings]')
    if not isinstance(value, KEYS[key]):
        expected = {str: "a text", list: "a list of texts", dict: "a table"}[KEYS[key]]
        raise TrainError(f"{file}: {key} = {value!r}: expected {expected}")


def _advice(file: str, table: str, source: str, values: Any, settings: Mapping[str, Setting]) -> dict[str, Advice]:
    if not isinstance(values, dict):
        raise TrainError(f"{file}: {table} = {values!r}: expected a table of settings")
    found: dict[str, Advice] = {}
    for given, value in values.items():
        name = RENAMED_SETTINGS.get(str(given), str(given))
        place = f"{file}: {table}.{given}"
        if name not in settings:
            hint = closest_name(name, settings) or "; docs/training.md has the names of all settings"
            raise TrainError(f"{place}: unknown setting{hint}")
        if name in OWN:
            raise TrainError(
                f"{place}: a recipe names no run, files or words of the images; remove it, and set it yourself"
            )
        if name in found:
            raise TrainError(f"{place}: {name} is set twice; keep one of them")
        found[name] = _one(place, settings[name], value, source)
    return found


def _one(place: str, setting: Setting, value: Any, source: str) -> Advice:
    why = ""
    if isinstance(value, dict) and value.keys() <= {"value", "why"} and "value" in value:
        value, why = value["value"], value.get("why", "")
    if not isinstance(why, str):
        raise TrainError(f"{place}.why = {why!r}: expected a text")
    try:
        return Advice(check_setting(setting, value), " ".join(why.split()), source)
    except SettingError as error:
        raise TrainError(f"{place}: {error}; correct it, or remove it from the recipe") from None
