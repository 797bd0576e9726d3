"""The node Encode Dataset: sources, a VAE and a CLIP become the plan of a dataset. Nothing is encoded here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from comfy_api.latest import io

from ..dataset_cache import BUCKET_STEPS, CROPS, CacheError, ListSource, Source, Transform, check_sets
from . import sockets
from .host.encoders import image_encoder, surroundings, text_encoder
from .library import DatasetPlan

if TYPE_CHECKING:
    from ..dataset_cache import Settings

TEXTS = 4  # in a batch: the host encodes one at a time, so that few are told of, and stopped, sooner
BACKGROUNDS = {"white": (255, 255, 255), "grey": (128, 128, 128), "black": (0, 0, 0)}


class StreamCacheEncode(io.ComfyNode):
    """A dataset to be. Streamable Cache Save or Train LoRA encode it, and only what is new in it."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheEncode",
            display_name="Encode Dataset",
            category=sockets.CATEGORY,
            description="Plans a dataset of images and captions. It is encoded when it is saved or trained on, and "
            "then only what is new.",
            search_aliases=["make training dataset", "vae encode dataset", "encode captions", "buckets", "latents"],
            is_input_list=True,
            inputs=_inputs(),
            outputs=[
                sockets.Dataset.Output(
                    "dataset", display_name="dataset", tooltip="A plan, for Streamable Cache Save or Train LoRA."
                )
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> str:
        """Embeddings that captions name are no input, but a change of one changes the dataset."""
        return surroundings().stamp

    @classmethod
    def execute(
        cls,
        source: Sequence[Any] = (),
        images: Sequence[torch.Tensor] = (),
        texts: Sequence[str] = (),
        **lists: Any,
    ) -> io.NodeOutput:
        one = sockets.scalars(lists)
        sources = _sources(source, images, texts)
        vae, clip = one.pop("vae", None), one.pop("clip", None)
        if vae is None and clip is None:
            raise CacheError("a dataset needs a VAE, a CLIP, or both; connect Load VAE and Load CLIP")
        encoders = image_encoder(vae) if vae is not None else None, text_encoder(clip) if clip is not None else None
        return io.NodeOutput(DatasetPlan(sources, *encoders, _settings(**one)))


NODES = [StreamCacheEncode]


def _sources(source: Sequence[Any], images: Sequence[torch.Tensor], texts: Sequence[str]) -> tuple[Source, ...]:
    """Folders, and the host's lists of images with their texts."""
    folders = tuple(item for chain in source for item in (chain or ()))
    pictures = [row for batch in images if batch is not None for row in _pictures(batch)]
    if texts and not pictures:
        raise CacheError("texts are connected without images; connect both, or a source with captions of its own")
    listed = (ListSource(pictures, [text for text in texts if text is not None]),) if pictures else ()
    if not folders and not listed:
        raise CacheError("there is nothing to encode: connect Image Folder Dataset, or images and texts")
    check_sets([*folders, *listed])
    return (*folders, *listed)


def _pictures(batch: torch.Tensor) -> Sequence[torch.Tensor]:
    if batch.ndim not in (3, 4):
        raise CacheError(f"images: found the shape {tuple(batch.shape)}, expected [batch, height, width, channels]")
    return batch.unbind(0) if batch.ndim == 4 else [batch]


def _settings(
    resolution: int = 1024,
    crop: str = "centre",
    flip: bool = False,
    more_resolutions: str = "",
    step: str = "64",
    min_aspect: float = 0.5,
    max_aspect: float = 2.0,
    upscale: bool = True,
    crop_seed: int = 0,
    batch_size: int = 4,
    thumbnail: int = 128,
    background: str = "white",
    trust: bool = False,
    check: bool = False,
) -> Settings:
    from ..dataset_cache import Settings  # when it is used: the host's start stays short

    sides = [resolution, *_numbers(more_resolutions)]
    transform = Transform(
        resolutions=tuple(dict.fromkeys(sides)),
        step=int(step),
        min_aspect=min_aspect,
        max_aspect=max_aspect,
        upscale=upscale,
        crop=crop,
        flip=flip,
        seed=crop_seed,
    )
    return Settings(
        transform,
        batch_size=batch_size,
        text_batch_size=TEXTS,
        thumbnail=thumbnail,
        background=BACKGROUNDS[background],
        trust=trust,
        check=check,
    )


def _numbers(text: str) -> list[int]:
    parts = [part for part in re.split(r"[,;\s]+", text or "") if part]
    if not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise CacheError(f"more_resolutions: found {text[:60]!r}, expected numbers such as 512, 768")
    return [int(part) for part in parts]


def _inputs() -> list[io.Input]:
    return [
        sockets.Source.Input("source", optional=True, tooltip="Folders of images, from Image Folder Dataset."),
        io.Image.Input("images", optional=True, tooltip="Images of other nodes, one by one or as a list."),
        io.String.Input(
            "texts",
            optional=True,
            force_input=True,
            tooltip="The captions of these images: one for each, or one for all. Several lines are variants.",
        ),
        io.Vae.Input(
            "vae", optional=True, tooltip="Encodes the images. Load VAE (On Demand) frees it when it is done."
        ),
        io.Clip.Input(
            "clip", optional=True, tooltip="Encodes the captions. Load CLIP (On Demand) frees it when it is done."
        ),
        io.Int.Input(
            "resolution",
            default=1024,
            min=64,
            max=8192,
            step=8,
            tooltip="Images get the area of a square with this side, in buckets by their aspect.",
        ),
        io.Combo.Input(
            "crop",
            options=list(CROPS),
            default="centre",
            tooltip="How what does not fit the bucket's aspect is cut off: at both sides, at a random place that stays "
            "the same, or not at all (the image is stretched).",
        ),
        io.Boolean.Input(
            "flip", default=False, tooltip="Encode each image mirrored too; epochs choose one of the two."
        ),
        *_bucket_inputs(),
        *_run_inputs(),
    ]


def _bucket_inputs() -> list[io.Input]:
    return [
        io.String.Input(
            "more_resolutions",
            default="",
            **sockets.RARE,
            tooltip="Further resolutions, such as 512, 768: each image is encoded at every one of them.",
        ),
        io.Combo.Input(
            "step",
            options=[str(step) for step in BUCKET_STEPS],
            default="64",
            **sockets.RARE,
            tooltip="Sides of buckets are multiples of this many pixels.",
        ),
        io.Float.Input(
            "min_aspect",
            default=0.5,
            min=0.05,
            max=1.0,
            step=0.05,
            **sockets.RARE,
            tooltip="Width / height of the tallest bucket.",
        ),
        io.Float.Input(
            "max_aspect",
            default=2.0,
            min=1.0,
            max=20.0,
            step=0.05,
            **sockets.RARE,
            tooltip="Width / height of the widest bucket.",
        ),
        io.Boolean.Input(
            "upscale",
            default=True,
            **sockets.RARE,
            tooltip="Enlarge images that are smaller than the resolution; off keeps them in smaller buckets.",
        ),
        io.Int.Input("crop_seed", default=0, min=0, max=2**31 - 1, **sockets.RARE, tooltip="Decides random crops."),
    ]


def _run_inputs() -> list[io.Input]:
    return [
        io.Int.Input(
            "batch_size",
            default=4,
            min=1,
            max=256,
            **sockets.RARE,
            tooltip="Images that the VAE encodes at a time; it is halved by itself when memory runs out.",
        ),
        io.Int.Input(
            "thumbnail",
            default=128,
            min=0,
            max=512,
            step=16,
            **sockets.RARE,
            tooltip="Longer side of the thumbnails that are kept for previews; 0 keeps none.",
        ),
        io.Combo.Input(
            "background",
            options=list(BACKGROUNDS),
            default="white",
            **sockets.RARE,
            tooltip="What shows through transparent images.",
        ),
        io.Boolean.Input(
            "trust",
            default=False,
            **sockets.RARE,
            tooltip="Take files that were encoded before as unchanged without looking at them.",
        ),
        io.Boolean.Input(
            "check",
            default=False,
            **sockets.RARE,
            tooltip="Compare what is stored with its checksums first, and encode again what is damaged.",
        ),
    ]
