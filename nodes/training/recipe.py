"""The node Train Recipe: settings for a base, a purpose and a card, with their reasons, as options of Train LoRA."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from comfy_api.latest import io, ui

from ...lora_train import TrainError, recipes
from .. import setting_inputs, sockets
from ..host.app import find_recipe, list_recipes, lora_stamp
from .options import RECIPE

AUTO, NONE = "auto", "none"


class StreamCacheRecipe(io.ComfyNode):
    """Settings with their reasons, as options that give way to a person's own."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        files = list_recipes()
        return io.Schema(
            node_id="StreamCacheRecipe",
            display_name="Train Recipe",
            category=sockets.CATEGORY,
            description="Settings for Train LoRA by base, purpose and card, each with its reason. Settings that you "
            "change on Train LoRA or Train Options win.",
            search_aliases=["preset", "training settings", "defaults", "recommended"],
            is_output_node=True,
            inputs=[
                io.Model.Input("model", optional=True, tooltip="The model to train on; auto takes its family."),
                sockets.Options.Input(
                    "options", optional=True, tooltip="Options that win over the recipe, from Train Options."
                ),
                io.Combo.Input("base", options=[AUTO, *recipes.BASES], tooltip="The model family."),
                io.Combo.Input("purpose", options=[*recipes.PURPOSES, NONE], tooltip="What the LoRA shall learn."),
                io.Combo.Input(
                    "card",
                    options=[AUTO, NONE, *recipes.CARDS],
                    tooltip="The memory of the graphics card; auto takes that of this computer.",
                ),
                io.Combo.Input(
                    "file",
                    options=files,
                    default=files[0],
                    optional=True,
                    tooltip="A recipe of your own instead, from the folder streamcache/recipes of your user folder.",
                ),
                io.String.Input(
                    "without",
                    default="",
                    optional=True,
                    tooltip="Settings that the recipe leaves at their defaults, such as caption_dropout, steps.",
                ),
            ],
            outputs=[
                sockets.Options.Output("settings", display_name="options", tooltip="For Train LoRA."),
                io.String.Output("text", display_name="text", tooltip="What the recipe sets, and why."),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, file: str = "", **others: Any) -> Any:
        """The file may have been replaced under the same name."""
        path = find_recipe(file)
        return lora_stamp(path) if path else None

    @classmethod
    def execute(
        cls,
        base: str,
        purpose: str,
        card: str,
        model: Any = None,
        options: Mapping[str, Any] | None = None,
        file: str = "",
        without: str = "",
    ) -> io.NodeOutput:
        own = dict(options or {})
        if RECIPE in own:
            raise TrainError("options: has a recipe already; keep one of the two Train Recipe nodes")
        recipe = _read(find_recipe(file), base, purpose, card, model)
        recipe = recipe.without(without.replace(",", " ").split(), setting_inputs.ALL_SETTINGS)
        words = "\n".join(recipe.explain(own))
        return io.NodeOutput(MappingProxyType({**own, RECIPE: recipe}), words, ui=ui.PreviewText(words))


def _read(path: Any, base: str, purpose: str, card: str, model: Any) -> recipes.Recipe:
    known = setting_inputs.ALL_SETTINGS
    if path is not None:
        return recipes.read_recipe_file(path, known)
    parts = [_base(model) if base == AUTO else base, *([] if purpose == NONE else [purpose])]
    size = _card() if card == AUTO else card
    return recipes.read_recipe("/".join([*parts, *([] if size == NONE else [size])]), known)


def _base(model: Any) -> str:
    from ..host.model import families_of  # on use: ComfyUI starts faster

    if model is None:
        raise TrainError("base = auto: needs the model; connect model, or choose a base")
    families = families_of(model)
    found = recipes.base_for(families)
    if found is None:
        name = families[0] if families else type(model.model).__name__
        raise TrainError(f"base = auto: no recipe for {name}; choose the base that is most like it")
    return found


def _card() -> str:
    from ..host.model import device_memory  # on use: ComfyUI starts faster

    total = device_memory()
    return recipes.card_for(total) if total else NONE
