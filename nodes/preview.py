"""The node Dataset Preview: a contact sheet and the bucket chart of a dataset, encoded or not."""

from typing import Any

import torch
from comfy_api.latest import io, ui
from PIL import Image

from ..dataset_cache import realize
from . import sockets
from .host.app import NodeProgress
from .library import is_plan


class StreamCachePreview(io.ComfyNode):
    """Shows a dataset. Of one that is not encoded yet the images themselves are shown, and nothing is encoded."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCachePreview",
            display_name="Dataset Preview",
            category=sockets.CATEGORY,
            description="Shows samples of a dataset by bucket, and how many each bucket has.",
            search_aliases=["contact sheet", "show dataset", "bucket chart", "thumbnails"],
            is_output_node=True,
            inputs=[
                sockets.Dataset.Input("dataset", tooltip="A saved dataset, or a plan from Encode Dataset."),
                io.Int.Input("count", default=32, min=1, max=512, tooltip="How many samples the contact sheet shows."),
                io.Vae.Input(
                    "vae", optional=True, tooltip="Shows latents as pictures where the dataset keeps no thumbnails."
                ),
                io.Int.Input(
                    "size",
                    default=128,
                    min=32,
                    max=512,
                    step=16,
                    **sockets.RARE,
                    tooltip="Pixels of one picture's side.",
                ),
            ],
            outputs=[
                io.Image.Output("sheet", display_name="contact sheet", tooltip="Samples evenly over the dataset."),
                io.Image.Output("chart", display_name="bucket chart", tooltip="Samples by bucket."),
            ],
        )

    @classmethod
    def execute(cls, dataset: Any, count: int, vae: Any = None, size: int = 128) -> io.NodeOutput:
        from .sheets import bucket_chart, contact_sheet  # when it is used: the host's start stays short

        opened = dataset.plan() if is_plan(dataset) else dataset.open()
        decode = (lambda latent: _decode(vae, latent)) if vae is not None else None
        sheet = contact_sheet(opened, count, size, decode, NodeProgress.check)
        images = [sockets.image(sheet), sockets.image(bucket_chart(opened))]
        shown = [item for image in images for item in ui.PreviewImage(image, cls=cls).as_dict()["images"]]
        return io.NodeOutput(*images, ui={"images": shown})


NODES = [StreamCachePreview]


def _decode(vae: Any, latent: dict) -> Image.Image:
    pixels = vae.decode(realize(latent["samples"]))
    first = pixels.reshape(-1, *pixels.shape[-3:])[0]
    return Image.fromarray((first.float().clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy())
