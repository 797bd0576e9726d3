"""The node Lazy Condition Realize: reads lazy latents and conditionings into memory; others pass through."""

from collections.abc import Sequence
from typing import Any

import torch
from comfy_api.latest import io
from comfy_execution.graph_utils import ExecutionBlocker

from ..dataset_cache import map_tensors, realize
from . import sockets
from .host.app import NodeProgress

DTYPES = {"as stored": None, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class StreamCacheRealize(io.ComfyNode):
    """For nodes of other packs that do not accept lazy tensors, or to read everything at once."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheRealize",
            display_name="Lazy Condition Realize",
            category=sockets.CATEGORY,
            description="Reads lazy latents and conditionings into memory. Stock nodes do not need it.",
            search_aliases=["load into memory", "materialize", "cast latent dtype", "cast conditioning"],
            is_input_list=True,
            inputs=[
                io.Latent.Input("latents", optional=True, tooltip="Latents, lazy or not."),
                io.Conditioning.Input("conditioning", optional=True, tooltip="Conditionings, lazy or not."),
                io.Combo.Input(
                    "dtype",
                    options=list(DTYPES),
                    default="as stored",
                    tooltip="Convert floating-point tensors to this dtype.",
                ),
            ],
            outputs=[
                io.Latent.Output(
                    "latents_out", display_name="latents", is_output_list=True, tooltip="The latents in memory."
                ),
                io.Conditioning.Output(
                    "conditioning_out",
                    display_name="conditioning",
                    is_output_list=True,
                    tooltip="The conditionings in memory.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls, dtype: Sequence[str], latents: Sequence[dict] = (), conditioning: Sequence[list] = ()
    ) -> io.NodeOutput:
        watch = NodeProgress()
        outputs = []
        for name, items in (("latents", latents), ("conditioning", conditioning)):
            missing = ExecutionBlocker(f"Lazy Condition Realize has no {name}: connect its input {name}")
            outputs.append([_real(item, DTYPES[dtype[0]], watch) for item in items] or missing)
        return io.NodeOutput(*outputs)


NODES = [StreamCacheRealize]


def _real(item: Any, dtype: torch.dtype | None, watch: NodeProgress) -> Any:
    watch.check()
    value = realize(item)
    return value if dtype is None else _cast(value, dtype)


def _cast(structure: Any, dtype: torch.dtype) -> Any:
    return map_tensors(structure, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
