"""The node Dataset Preview: a contact sheet and the bucket chart of a dataset, encoded or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from comfy_api.latest import io, ui
from PIL import Image

from ..dataset_cache import THUMBNAIL, CacheError, Sample, decode_thumbnail, realize
from ..lora_train import draw_grid, plot_buckets
from . import sockets
from .host.app import NodeProgress
from .library import is_plan

COLUMNS = 8
Decode = Callable[[dict], Image.Image]  # latent → image


class StreamCachePreview(io.ComfyNode):
    """Shows a dataset. For a plan it shows the source images, without encoding them."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCachePreview",
            display_name="Dataset Preview",
            category=sockets.CATEGORY,
            description="Shows samples of a dataset by bucket, and the number of samples per bucket.",
            search_aliases=["contact sheet", "show dataset", "bucket chart", "thumbnails"],
            is_output_node=True,
            inputs=[
                sockets.Dataset.Input("dataset", tooltip="A saved dataset, or a plan from Encode Dataset."),
                io.Int.Input("count", default=32, min=1, max=512, tooltip="Number of samples on the contact sheet."),
                io.Vae.Input("vae", optional=True, tooltip="Decodes latents if the dataset has no thumbnails."),
                io.Int.Input(
                    "size",
                    default=128,
                    min=32,
                    max=512,
                    step=16,
                    **sockets.ADVANCED,
                    tooltip="Size of each image on the sheet, in pixels.",
                ),
            ],
            outputs=[
                io.Image.Output("sheet", display_name="contact sheet", tooltip="Samples evenly across the dataset."),
                io.Image.Output("chart", display_name="bucket chart", tooltip="Samples per bucket."),
            ],
        )

    @classmethod
    def execute(cls, dataset: Any, count: int, vae: Any = None, size: int = 128) -> io.NodeOutput:
        opened = dataset.plan() if is_plan(dataset) else dataset.open()
        decode = (lambda latent: _decode(vae, latent)) if vae is not None else None
        sheet = contact_sheet(opened, count, size, decode, NodeProgress.check)
        images = [sockets.image(sheet), sockets.image(plot_buckets(bucket_counts(opened)))]
        shown = [item for image in images for item in ui.PreviewImage(image, cls=cls).as_dict()["images"]]
        return io.NodeOutput(*images, ui={"images": shown})


NODES = [StreamCachePreview]


def contact_sheet(dataset: Any, count: int, cell: int, decode: Decode | None, check: Callable[[], None]) -> Image.Image:
    """Samples evenly across the dataset, in rows by size. `check` is called before each and may raise to stop."""
    step = max(1, len(dataset) // max(count, 1))
    rows: dict[str, list[Image.Image]] = {}
    for number in range(0, len(dataset), step)[:count]:
        check()
        sample = dataset.sample(number)
        rows.setdefault(_size_name(*sample.crop[2:]), []).append(_image(sample, decode))
    lines = [(name, found[at : at + COLUMNS]) for name, found in rows.items() for at in range(0, len(found), COLUMNS)]
    shown = sum(map(len, rows.values()))
    names = ["" if name == _size_name(0, 0) else name for name, _ in lines]
    return draw_grid([row for _, row in lines], names, title=f"{shown:,} of {len(dataset):,} samples", cell=cell)


def bucket_counts(dataset: Any) -> dict[str, int]:
    """Samples by the size they are encoded at, or by latent shape if the size in pixels is unknown."""
    sizes = Counter(map(tuple, dataset.column("crop")[:, 2:].tolist()))
    if set(sizes) == {(0, 0)}:
        return {str(bucket): len(rows) for bucket, rows in dataset.buckets().items()}
    return {_size_name(*size): count for size, count in sizes.most_common()}


def _size_name(width: int, height: int) -> str:
    return f"{width}×{height}"


def _image(sample: Sample, decode: Decode | None) -> Image.Image:
    data = sample.fields.get(THUMBNAIL)
    if data is not None:
        return decode_thumbnail(data)
    if decode is None or sample.latent is None:
        raise CacheError("this dataset has no thumbnails; connect a VAE to decode its latents")
    return decode(sample.latent)


def _decode(vae: Any, latent: dict) -> Image.Image:
    pixels = vae.decode(realize(latent["samples"]))
    first = pixels.reshape(-1, *pixels.shape[-3:])[0]
    return Image.fromarray((first.float().clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy())
