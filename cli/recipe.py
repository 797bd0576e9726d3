"""`streamcache recipe`, and recipes for `streamcache train`: settings with the reason for each."""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..lora_train import TRAIN_SETTINGS, recipes
from ..nodes.host import HOST_SETTINGS
from ..setting import Setting
from .output import show
from .parser import Parser, UsageError, usage_errors

KNOWN: dict[str, Setting] = {**TRAIN_SETTINGS, **HOST_SETTINGS}


def add_recipe_flags(parser: Parser) -> None:
    parser.set_defaults(run=run)
    parser.usage = "%(prog)s list | show RECIPE"
    parser.add_argument("action", choices=("list", "show"), help="All parts of recipes, or what one sets and why")
    parser.add_argument("recipe", nargs="?", default="", metavar="RECIPE", help=f"What to show: {HELP}")


HELP = "base/purpose/card, such as sdxl/character/12GB; purpose and card may be left out; or a TOML file"


def run(args: argparse.Namespace) -> int:
    if (args.action == "show") != bool(args.recipe):
        raise UsageError(f"recipe {args.action}: expected {'the name of a recipe' if not args.recipe else 'no name'}")
    if args.action == "list":
        return _list(args)
    with usage_errors():
        recipe = find_recipe(args.recipe)
    facts = {name: {"value": advice.value, "why": advice.why} for name, advice in recipe.advice.items()}
    show(args, {"recipe": recipe.name, "about": recipe.about, "settings": facts}, recipe.explain())
    return 0


def find_recipe(name: str) -> recipes.Recipe:
    """A recipe of the pack, or that of a file."""
    if name.lower().endswith(".toml"):
        return recipes.read_recipe_file(Path(name), KNOWN)
    return recipes.read_recipe(name, KNOWN)


def recipe_values(name: str | None, settings: Mapping[str, Any], own: Iterable[str] = ()) -> dict[str, Any]:
    """What a recipe sets among these settings, except for one's own; nothing without a name."""
    values = find_recipe(name).values(own) if name else {}
    return {name: value for name, value in values.items() if name in settings}


def _list(args: argparse.Namespace) -> int:
    bases, purposes = recipes.describe_bases(), recipes.describe_purposes()
    parts = [*(("base", *row) for row in bases.items()), *(("purpose", *row) for row in purposes.items())]
    parts.append(("card", ", ".join(recipes.CARDS), "Other sizes work too, such as 10GB."))
    lines = [f"{kind:8} {name:12} {about}" for kind, name, about in parts]
    usage = "A recipe is base/purpose/card: streamcache train --recipe sdxl/character/12GB"
    show(args, {"bases": bases, "purposes": purposes, "cards": list(recipes.CARDS)}, [*lines, usage])
    return 0
