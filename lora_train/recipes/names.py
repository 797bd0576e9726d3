"""The recipes that come with the pack, by name: base/purpose/card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ...dataset_cache import Setting, closest_name
from ...errors import TrainError
from ..config import TRAIN_SETTINGS
from .cards import CARDS, card_advice, is_card
from .recipe import Recipe, joined
from .table import Table, read_table

_HERE = Path(__file__).parent


def _list(folder: str) -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in (_HERE / folder).glob("*.toml")))


BASES = _list("base")
PURPOSES = _list("purpose")


def read_recipe(name: str, known: Mapping[str, Setting] = TRAIN_SETTINGS) -> Recipe:
    """The recipe of a name such as sdxl, sdxl/character or sdxl/character/12GB; `known` are the caller's settings."""
    base, purpose, card = _parts(name)
    table = _read("base", base, known)
    parts, abouts = [table.settings], [table.about]
    if purpose:
        goal = _read("purpose", purpose, known)
        parts += [goal.settings, goal.by_base.get(base, {})]
        abouts.append(goal.about)
    if card:
        parts.append({key: advice for key, advice in card_advice(table, card).items() if key in known})
    return joined(name, "\n".join(abouts), parts)


def read_recipe_file(path: Path, known: Mapping[str, Setting] = TRAIN_SETTINGS) -> Recipe:
    """A person's own recipe, or one that was shared. It may begin with one of the pack: recipe = "sdxl/style"."""
    table = read_table(path, known)
    for key, used in (("for", table.by_base), ("families", table.families), ("memory", table.memory)):
        if used:
            raise TrainError(f'{path.name}: "{key}" is only for recipes of the pack; put the values below [settings]')
    below = []
    if table.recipe:
        try:
            below = [read_recipe(table.recipe, known).advice]
        except TrainError as error:
            raise TrainError(f"{path.name}: recipe: {error}") from None
    return joined(path.name, table.about or table.title, [*below, table.settings])


def base_for(families: Iterable[str]) -> str | None:
    """The base for a model of ComfyUI, by the names of its class and of those that it extends, or of its own name."""
    tables = {name: _read("base", name, TRAIN_SETTINGS) for name in BASES}
    return next((name for family in families for name, table in tables.items() if family in table.families), None)


def describe_bases() -> dict[str, str]:
    return {name: _read("base", name, TRAIN_SETTINGS).about for name in BASES}


def describe_purposes() -> dict[str, str]:
    return {name: _read("purpose", name, TRAIN_SETTINGS).about for name in PURPOSES}


def _parts(name: str) -> tuple[str, str, str]:
    base, *others = [part.strip() for part in name.split("/")]
    if base not in BASES:
        raise TrainError(f'recipe "{name}": unknown base "{base}"{_known(base, BASES)}')
    purposes = [part for part in others if part in PURPOSES]
    cards = [part for part in others if is_card(part)]
    unknown = [part for part in others if part not in (*purposes, *cards)]
    if unknown:
        raise TrainError(f'recipe "{name}": unknown part "{unknown[0]}"{_known(unknown[0], (*PURPOSES, *CARDS))}')
    if len(purposes) > 1 or len(cards) > 1:
        raise TrainError(f'recipe "{name}": expected base/purpose/card, such as sdxl/character/12GB')
    return base, "".join(purposes), "".join(cards)


def _known(name: str, known: Iterable[str]) -> str:
    return f"{closest_name(name, known)}; there are {', '.join(known)}"


def _read(folder: str, name: str, known: Mapping[str, Setting]) -> Table:
    return read_table(_HERE / folder / f"{name}.toml", known)
