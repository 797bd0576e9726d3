"""The node Select Samples: some samples of a dataset, as a dataset and as lists for other nodes."""

import re
from typing import Any

import numpy as np
from comfy_api.latest import io
from comfy_execution.graph_utils import ExecutionBlocker

from ..dataset_cache import CacheError
from . import sockets
from .library import DatasetHandle, is_plan, lazy_field

MAX_LISTED = 4096  # the host copies lists item by item, so longer ones are never made
_SIZE = re.compile(r"\s*(\d+)\s*[x×*]\s*(\d+)\s*")


class StreamCacheSelect(io.ComfyNode):
    """Chooses samples by number, caption and bucket. Nothing is read until a list's items are used."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheSelect",
            display_name="Select Samples",
            category=sockets.CATEGORY,
            description="Chooses samples of a dataset: a smaller dataset, and lists of lazy latents and conditionings "
            "for any node.",
            search_aliases=["filter dataset", "dataset to latents", "subset", "get samples", "lazy latents"],
            inputs=_inputs(),
            outputs=[
                sockets.Dataset.Output("selected", display_name="dataset", tooltip="The chosen samples as a dataset."),
                io.Latent.Output(
                    "latents", is_output_list=True, display_name="latents", tooltip="One for each sample."
                ),
                io.Conditioning.Output(
                    "conditioning", is_output_list=True, display_name="conditioning", tooltip="One for each sample."
                ),
                io.String.Output(
                    "captions", is_output_list=True, display_name="captions", tooltip="One for each sample."
                ),
            ],
        )

    @classmethod
    def execute(
        cls, dataset: Any, start: int, limit: int, caption: str = "", bucket: str = "", stop: int = 0
    ) -> io.NodeOutput:
        if is_plan(dataset):
            raise CacheError(
                "this dataset is not encoded yet; put Streamable Cache Save between Encode Dataset and here"
            )
        handle = dataset.select(choose(dataset.open(), start, stop, limit, caption, bucket))
        return io.NodeOutput(handle, *_lists(handle))


NODES = [StreamCacheSelect]


def choose(dataset: Any, start: int, stop: int, limit: int, caption: str, bucket: str) -> np.ndarray:
    """The numbers of the samples that fit: from `start` to before `stop` (0: the end), at most `limit` (0: all)."""
    numbers = np.arange(len(dataset))[start : stop or None]
    if bucket.strip():
        numbers = numbers[np.isin(numbers, _in_bucket(dataset, bucket))]
    found = numbers
    if caption.strip():
        words = caption.strip().casefold()
        found = np.array([n for n in numbers.tolist() if any(words in c.casefold() for c in dataset.captions(n))], int)
    if not len(found):
        raise CacheError(
            f"no sample of {len(dataset):,} fits: start {start}, stop {stop}, caption {caption!r}, bucket {bucket!r}; "
            f"its buckets are {', '.join(map(str, list(dataset.buckets())[:8]))}"
        )
    return found[:limit] if limit else found


def _in_bucket(dataset: Any, text: str) -> np.ndarray:
    """Samples of a width and height, in pixels as they were encoded, or in latent pixels."""
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
            f"{len(handle):,} samples are too many for a list ({MAX_LISTED:,} are allowed): lower the limit of Select "
            "Samples, or use its dataset output"
        )
        blocked = ExecutionBlocker(reason)
        return blocked, blocked, blocked
    numbers, dataset = range(len(handle)), handle.open()
    captions = [next(iter(dataset.captions(n)), "") for n in numbers]
    return _field(handle, dataset, "latent"), _field(handle, dataset, "conditioning"), captions


def _field(handle: DatasetHandle, dataset: Any, name: str) -> Any:
    if not dataset.variants(name).all():
        return ExecutionBlocker(f"not all of these samples have a {name}; encode the dataset with a VAE and a CLIP")
    return [lazy_field(handle, n, name) for n in range(len(handle))]


def _inputs() -> list[io.Input]:
    return [
        sockets.Dataset.Input("dataset", tooltip="A saved dataset."),
        io.Int.Input("start", default=0, min=0, max=2**31 - 1, tooltip="The first sample, counted from 0."),
        io.Int.Input(
            "limit",
            default=16,
            min=0,
            max=2**31 - 1,
            tooltip=f"At most so many samples; 0 takes all. Lists are made for up to {MAX_LISTED:,}.",
        ),
        io.String.Input("caption", default="", tooltip="Only samples whose caption holds this text; empty takes all."),
        io.String.Input(
            "bucket", default="", tooltip="Only samples of this width x height, such as 1024x768; empty takes all."
        ),
        io.Int.Input(
            "stop",
            default=0,
            min=0,
            max=2**31 - 1,
            **sockets.RARE,
            tooltip="Samples from this number on are left out; 0 goes to the end.",
        ),
    ]
