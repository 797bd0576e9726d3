"""The node Select Samples: some samples of a dataset, as a dataset and as lists for other nodes."""

import re
from typing import Any

import numpy as np
from comfy_api.latest import io
from comfy_execution.graph_utils import ExecutionBlocker

from ..dataset_cache import CacheError, Dataset, samples_by_bucket
from . import sockets
from .library import DatasetHandle, DatasetPlan, lazy_field

MAX_LISTED = 4096  # ComfyUI copies lists item by item, so longer ones are not made
_SIZE = re.compile(r"\s*(\d+)\s*[x×*]\s*(\d+)\s*")


class StreamCacheSelect(io.ComfyNode):
    """Selects samples by number, caption and bucket. Nothing is read until an item of a list is used."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheSelect",
            display_name="Select Samples",
            category=sockets.CATEGORY,
            description="Selects samples of a dataset. Returns a smaller dataset, and lists of lazy latents and "
            "conditionings for any node.",
            search_aliases=["filter dataset", "dataset to latents", "subset", "get samples", "lazy latents"],
            inputs=_inputs(),
            outputs=[
                sockets.Dataset.Output(
                    "selected", display_name="dataset", tooltip="The selected samples as a dataset."
                ),
                io.Latent.Output("latents", is_output_list=True, display_name="latents", tooltip="One per sample."),
                io.Conditioning.Output(
                    "conditioning", is_output_list=True, display_name="conditioning", tooltip="One per sample."
                ),
                io.String.Output("captions", is_output_list=True, display_name="captions", tooltip="One per sample."),
            ],
        )

    @classmethod
    def execute(
        cls,
        dataset: DatasetHandle | DatasetPlan,
        start: int,
        limit: int,
        caption: str = "",
        bucket: str = "",
        stop: int = 0,
    ) -> io.NodeOutput:
        saved = dataset.saved()
        handle = saved.select(choose(saved.open(), start, stop, limit, caption, bucket))
        return io.NodeOutput(handle, *_lists(handle))


NODES = [StreamCacheSelect]


def choose(dataset: Dataset, start: int, stop: int, limit: int, caption: str, bucket: str) -> np.ndarray:
    """The numbers of matching samples from `start` up to but not including `stop` (0: the end), at most `limit`."""
    numbers = np.arange(len(dataset))[start : stop or None]
    if bucket.strip():
        numbers = numbers[np.isin(numbers, _in_bucket(dataset, bucket))]
    found = numbers
    if caption.strip():
        words = caption.strip().casefold()
        found = np.array([n for n in numbers.tolist() if any(words in c.casefold() for c in dataset.captions(n))], int)
    if not len(found):
        raise CacheError(
            f"none of {len(dataset):,} samples matches start {start}, stop {stop}, caption {caption!r}, bucket "
            f"{bucket!r}; available buckets: {', '.join(list(samples_by_bucket(dataset))[:8])}"
        )
    return found[:limit] if limit else found


def _in_bucket(dataset: Dataset, text: str) -> np.ndarray:
    """Samples of a width and height, in image pixels as encoded or in latent pixels."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise CacheError(f"bucket: found {text[:60]!r}, expected width x height, such as 1024x768")
    size = int(match[1]), int(match[2])
    crops = dataset.column("crop")
    pixels = np.flatnonzero((crops[:, 2] == size[0]) & (crops[:, 3] == size[1]))
    latent = [rows for bucket, rows in dataset.buckets().items() if bucket.shape[-2:] == size[::-1]]
    return np.concatenate([pixels, *latent])


def _lists(handle: DatasetHandle) -> tuple[Any, Any, Any]:
    if len(handle) > MAX_LISTED:
        reason = (
            f"{len(handle):,} samples are too many for a list (at most {MAX_LISTED:,}): lower the limit of Select "
            "Samples, or use its dataset output"
        )
        blocked = ExecutionBlocker(reason)
        return blocked, blocked, blocked
    numbers, dataset = range(len(handle)), handle.open()
    captions = [next(iter(dataset.captions(n)), "") for n in numbers]
    return _field(handle, dataset, "latent"), _field(handle, dataset, "conditioning"), captions


def _field(handle: DatasetHandle, dataset: Dataset, name: str) -> Any:
    if not dataset.variants(name).all():
        return ExecutionBlocker(f"some of these samples have no {name}; encode the dataset with a VAE and a CLIP")
    return [lazy_field(handle, n, name) for n in range(len(handle))]


def _inputs() -> list[io.Input]:
    return [
        sockets.Dataset.Input("dataset", tooltip="A saved dataset."),
        io.Int.Input("start", default=0, min=0, max=2**31 - 1, tooltip="Number of the first sample, counted from 0."),
        io.Int.Input(
            "limit",
            default=16,
            min=0,
            max=2**31 - 1,
            tooltip=f"Maximum number of samples; 0 = all. Lists have at most {MAX_LISTED:,} items.",
        ),
        io.String.Input("caption", default="", tooltip="Only samples whose caption contains this text; empty = all."),
        io.String.Input(
            "bucket", default="", tooltip="Only samples of this width x height, such as 1024x768; empty = all."
        ),
        io.Int.Input(
            "stop",
            default=0,
            min=0,
            max=2**31 - 1,
            **sockets.ADVANCED,
            tooltip="Stop before the sample with this number; 0 = to the end.",
        ),
    ]
