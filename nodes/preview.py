"""The node Dataset Preview: a contact sheet and the bucket chart of a dataset, encoded or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from comfy_api.latest import io, ui
from PIL import Image

from ..dataset_cache import (
    THUMBNAIL,
    CacheError,
    Sample,
    Samples,
    draw_sheet,
    evenly_spaced,
    realize,
    samples_by_bucket,
    samples_by_size,
    thumbnail_of,
)
from ..lora_train import plot_buckets
from . import sockets
from .host.app import NodeProgress
from .library import DatasetHandle, DatasetPlan

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
    def execute(
        cls, dataset: DatasetHandle | DatasetPlan, count: int, vae: Any = None, size: int = 128
    ) -> io.NodeOutput:
        samples, groups = _by_bucket(dataset)
        decode = (lambda latent: _decode(vae, latent)) if vae is not None else None
        sheet = preview_sheet(samples, groups, count, size, decode, NodeProgress.check)
        chart = plot_buckets({label: len(rows) for label, rows in groups.items()})
        images = [sockets.image(sheet), sockets.image(chart)]
        shown = [item for image in images for item in ui.PreviewImage(image, cls=cls).as_dict()["images"]]
        return io.NodeOutput(*images, ui={"images": shown})


NODES = [StreamCachePreview]


def preview_sheet(
    dataset: Samples,
    groups: Mapping[str, np.ndarray],
    count: int,
    side: int,
    decode: Decode | None,
    check: Callable[[], None],
) -> Image.Image:
    """`count` samples, evenly spaced over the dataset, by group. `check` is called for each and may raise to stop."""
    chosen = evenly_spaced(range(len(dataset)), count)
    rows = {label: found[np.isin(found, chosen)].tolist() for label, found in groups.items()}

    def image_of(sample: Sample) -> Image.Image:
        check()
        return _image(sample, decode)

    title = f"{len(chosen):,} of {len(dataset):,} samples"
    shown = {label: found for label, found in rows.items() if found}
    return draw_sheet(dataset, shown, image_of=image_of, title=title, columns=COLUMNS, side=side)


def _by_bucket(dataset: DatasetHandle | DatasetPlan) -> tuple[Samples, Mapping[str, np.ndarray]]:
    samples = dataset.samples()
    # Without latents, buckets are known by image size only.
    return samples, samples_by_bucket(samples) if samples.encoded else samples_by_size(samples)


def _image(sample: Sample, decode: Decode | None) -> Image.Image:
    if sample.fields.get(THUMBNAIL) is not None:
        return thumbnail_of(sample)
    if decode is None or sample.latent is None:
        raise CacheError("this dataset has no thumbnails; connect a VAE to decode its latents")
    return decode(sample.latent)


def _decode(vae: Any, latent: dict) -> Image.Image:
    pixels = vae.decode(realize(latent["samples"]))
    first = pixels.reshape(-1, *pixels.shape[-3:])[0]
    return Image.fromarray((first.float().clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy())
