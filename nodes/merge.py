"""The node Merge Datasets: several caches as one."""

import math
import re
from typing import Any

from comfy_api.latest import io

from ..dataset_cache import IF_EXISTS, CacheError, Part
from . import sockets
from .cache import checked_save_path, save_fingerprint, save_name_problem, save_output
from .host.app import NodeProgress
from .library import DatasetHandle, DatasetPlan, save_parts

MAX_DATASETS = 16


class StreamCacheMerge(io.ComfyNode):
    """Copies stored entries; nothing is encoded."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheMerge",
            display_name="Merge Datasets",
            category=sockets.CATEGORY,
            description="Saves several datasets as one, each with a weight. Nothing is encoded again.",
            search_aliases=["combine datasets", "join datasets", "concat dataset", "mix datasets"],
            is_output_node=True,
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
            inputs=[
                io.String.Input(
                    "name", default="merged", tooltip="Name of the new cache, a folder in output/streamcache."
                ),
                io.Autogrow.Input(
                    "datasets",
                    template=io.Autogrow.TemplatePrefix(
                        sockets.Dataset.Input("dataset", tooltip="A saved dataset."),
                        prefix="dataset",
                        min=1,
                        max=MAX_DATASETS,
                    ),
                    tooltip="The datasets to merge, in this order.",
                ),
                io.String.Input(
                    "weights",
                    default="",
                    tooltip="One number per dataset, such as 1, 0.5: how often its samples are drawn per epoch. "
                    "Empty: each once.",
                ),
                io.Combo.Input(
                    "if_exists",
                    options=list(IF_EXISTS),
                    default="update",
                    **sockets.ADVANCED,
                    tooltip="If the cache exists: update it if it was made by merging, or refuse.",
                ),
            ],
            outputs=[sockets.Dataset.Output("dataset", display_name="dataset", tooltip="The merged dataset.")],
        )

    @classmethod
    def validate_inputs(cls, name: str, **others: Any) -> bool | str:
        return save_name_problem(name)

    @classmethod
    def fingerprint_inputs(cls, name: str, **others: Any) -> Any:
        return save_fingerprint(name, cls.hidden.unique_id)

    @classmethod
    def execute(
        cls,
        name: str,
        datasets: dict[str, DatasetHandle | DatasetPlan | None],
        weights: str = "",
        if_exists: str = "update",
    ) -> io.NodeOutput:
        path = checked_save_path(name, if_exists, cls.hidden)
        parts = _parts([dataset for dataset in datasets.values() if dataset is not None], weights)
        watch = NodeProgress()
        return save_output(save_parts(parts, name, path, watch, merged=True), watch, cls.hidden.unique_id)


NODES = [StreamCacheMerge]


def _parts(datasets: list[DatasetHandle | DatasetPlan], weights: str) -> list[Part]:
    if not datasets:
        raise CacheError("nothing to merge: connect at least one dataset")
    numbers = parse_weights(weights, len(datasets))
    return [Part(dataset.saved().open(), weight) for dataset, weight in zip(datasets, numbers, strict=True)]


def parse_weights(text: str, count: int) -> list[float]:
    words = [word for word in re.split(r"[,;\s]+", text.strip()) if word]
    if not words:
        return [1.0] * count
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = []
    if len(numbers) != count or not all(math.isfinite(number) and number > 0 for number in numbers):
        raise CacheError(f"weights: found {text[:60]!r}, expected {count} numbers above 0, such as 1, 0.5")
    return numbers
