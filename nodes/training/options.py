"""The node Train Options, and how its settings, those of Train LoRA and a recipe become one set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from comfy_api.latest import io

from ...lora_train import TrainConfig, TrainError, load_config, recipes
from .. import setting_inputs, sockets
from ..host import HostSettings, split_settings
from ..host.app import find_lora, lora_stamp

RECIPE = "recipe"  # the key of a recipe among options: it gives way to every setting


class StreamCacheTrainOptions(io.ComfyNode):
    """Settings as a value that several training nodes can share."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheTrainOptions",
            display_name="Train Options",
            category=sockets.CATEGORY,
            description="For Train LoRA: adapter, schedule, objective, memory, validation and saving. Settings "
            "changed here override those on Train LoRA. Several of these nodes can be chained.",
            search_aliases=["lora settings", "training settings", "scheduler", "dora", "lokr", "loha", "ema"],
            inputs=[
                sockets.Options.Input("options", optional=True, tooltip="Options to extend with these settings."),
                *setting_inputs.further_inputs(advanced=False),
            ],
            outputs=[sockets.Options.Output("settings", display_name="options", tooltip="For Train LoRA.")],
        )

    @classmethod
    def fingerprint_inputs(cls, start_from: str = "", training_adapter: str = "", **others: Any) -> Any:
        """The LoRAs may have been replaced under the same names."""
        return [lora_stamp(find_lora(file)) if file else None for file in (start_from, training_adapter)]

    @classmethod
    def execute(cls, options: Mapping[str, Any] | None = None, **settings: Any) -> io.NodeOutput:
        own = setting_inputs.changed(setting_inputs.read_settings(settings))
        return io.NodeOutput(MappingProxyType({**(options or {}), **own}))


def join_settings(
    values: Mapping[str, Any], options: Mapping[str, Any] | None
) -> tuple[TrainConfig, HostSettings, list[str]]:
    """All settings of a training, and what its run notes about the recipe.

    Options win over the node, and both over the recipe. A value of the node is a person's own if it is not the default.
    """
    chained = dict(options or {})
    recipe: recipes.Recipe | None = chained.pop(RECIPE, None)
    own = {**setting_inputs.changed(values), **chained}
    advised = recipe.values(own) if recipe is not None else {}
    host, engine = split_settings({**values, **advised, **chained})
    try:
        return load_config(engine, "settings"), host, [recipe.note(own)] if recipe is not None else []
    except TrainError as error:
        named = [name for name in advised if re.search(rf"\b{name}\b", str(error))]
        if not named:
            raise
        raise TrainError(
            f"{error}; of the recipe: {', '.join(named)}; to keep the default, name it in without of Train Recipe"
        ) from None
