"""Recipes: settings for a base, a purpose and a card, each with its reason."""

from .cards import CARDS, card_for
from .names import BASES, PURPOSES, base_for, describe_bases, describe_purposes, read_recipe, read_recipe_file
from .recipe import Recipe

__all__ = [
    "BASES",
    "CARDS",
    "PURPOSES",
    "Recipe",
    "base_for",
    "card_for",
    "describe_bases",
    "describe_purposes",
    "read_recipe",
    "read_recipe_file",
]
