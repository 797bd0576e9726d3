"""The node Train Options: all settings of the trainer that the training node keeps behind its advanced inputs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from comfy_api.latest import io

from . import setting_inputs, sockets
from .host.app import find_lora, lora_stamp


class StreamCacheTrainOptions(io.ComfyNode):
    """Settings as a value of its own, to be shared by several training nodes."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheTrainOptions",
            display_name="Train Options",
            category=sockets.CATEGORY,
            description="Settings for Train LoRA: adapter, schedule, objective, memory, validation and saving. What is "
            "changed here wins over the same setting on the training node; several of these can follow each other.",
            search_aliases=["lora settings", "training settings", "scheduler", "dora", "lokr", "loha", "ema"],
            inputs=[
                sockets.Options.Input("options", optional=True, tooltip="Options to add these to."),
                *setting_inputs.further_inputs(advanced=False),
            ],
            outputs=[sockets.Options.Output("settings", display_name="options", tooltip="For Train LoRA.")],
        )

    @classmethod
    def fingerprint_inputs(cls, start_from: str = "", **others: Any) -> Any:
        """The LoRA that a training starts from may be another one under the same name."""
        return lora_stamp(find_lora(start_from or ""))

    @classmethod
    def execute(cls, options: Mapping[str, Any] | None = None, **settings: Any) -> io.NodeOutput:
        own = setting_inputs.changed(setting_inputs.read_settings(settings))
        return io.NodeOutput(MappingProxyType({**(options or {}), **own}))


NODES = [StreamCacheTrainOptions]
