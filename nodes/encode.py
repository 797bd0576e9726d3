"""The node Encode Dataset: sources, a VAE and a CLIP become a plan. Encoding happens when it is saved or trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from comfy_api.latest import io

from ..dataset_cache import (
    PLAN_SETTINGS,
    CacheError,
    ListSource,
    SettingError,
    Settings,
    Source,
    check_sets,
    load_settings,
    missing_parts,
    parse_setting,
)
from . import sockets
from .host.encoders import image_encoder, surroundings, text_encoder
from .library import DatasetPlan
from .setting_inputs import read_inputs, setting_input

NO_SOURCE = "nothing to encode: connect Image Folder Dataset, or images and texts"
NO_ENCODER = "a dataset needs a VAE, a CLIP, or both; connect Load VAE and Load CLIP"
# Saved workflows have the widgets by position: add new ones at the end.
MAIN = ("resolution", "crop", "flip")
ADVANCED = (
    "step",
    "min_aspect",
    "max_aspect",
    "upscale",
    "crop_seed",
    "batch_size",
    "thumbnail",
    "background",
    "trust",
    "check",
    "allow_missing",
    "text_batch_size",
    "trim_padding",
)


class StreamCacheEncode(io.ComfyNode):
    """Outputs a plan. Streamable Cache Save and Train LoRA encode it, as far as it is new."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheEncode",
            display_name="Encode Dataset",
            category=sockets.CATEGORY,
            description="Plans a dataset of images and captions. It is encoded when it is saved or trained on; only "
            "new and changed images and captions are encoded.",
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
    def validate_inputs(
        cls, source: Any = sockets.OPEN, images: Any = sockets.OPEN, vae: Any = sockets.OPEN, clip: Any = sockets.OPEN
    ) -> bool | str:
        if source is images is sockets.OPEN:
            return NO_SOURCE
        return NO_ENCODER if vae is clip is sockets.OPEN else True

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> str:
        """Captions can name embeddings, which are not inputs but change the dataset when they change."""
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
            raise CacheError(NO_ENCODER)
        encoders = image_encoder(vae) if vae is not None else None, text_encoder(clip) if clip is not None else None
        missing = missing_parts(*encoders)
        shown = {"text": ["\n".join(missing)], "streamcache": [{"missing": missing}]} if missing else None
        return io.NodeOutput(DatasetPlan(sources, *encoders, _settings(**one)), ui=shown)


NODES = [StreamCacheEncode]


def _sources(source: Sequence[Any], images: Sequence[torch.Tensor], texts: Sequence[str]) -> tuple[Source, ...]:
    """Folders, and ComfyUI's lists of images with their texts."""
    folders = tuple(item for chain in source for item in (chain or ()))
    rows = [row for batch in images if batch is not None for row in _rows(batch)]
    if texts and not rows:
        raise CacheError("texts are connected without images; connect both, or a source with captions of its own")
    listed = (ListSource(rows, [text for text in texts if text is not None]),) if rows else ()
    if not folders and not listed:
        raise CacheError(NO_SOURCE)
    check_sets([*folders, *listed])
    return (*folders, *listed)


def _rows(batch: torch.Tensor) -> Sequence[torch.Tensor]:
    if batch.ndim not in (3, 4):
        raise CacheError(f"images: found the shape {tuple(batch.shape)}, expected [batch, height, width, channels]")
    return batch.unbind(0) if batch.ndim == 4 else [batch]


def _settings(resolution: int = 1024, more_resolutions: str = "", **values: Any) -> Settings:
    try:
        more = parse_setting(PLAN_SETTINGS["resolution"], more_resolutions or "")
    except SettingError:
        found = f'more_resolutions = "{more_resolutions[:60]}"'
        raise CacheError(f"{found}: expected numbers such as 512, 768") from None
    given = read_inputs(PLAN_SETTINGS, values)
    sides = list(dict.fromkeys([resolution, *more]))
    return load_settings({"resolution": sides, **given}, "Encode Dataset")


def _inputs() -> list[io.Input]:
    main = [setting_input(PLAN_SETTINGS[name]) for name in MAIN]
    rare = [setting_input(PLAN_SETTINGS[name], **sockets.ADVANCED) for name in ADVANCED]
    more = io.String.Input(
        "more_resolutions",
        default="",
        **sockets.ADVANCED,
        tooltip="Further resolutions, such as 512, 768. Each image is encoded at all of them.",
    )
    return [
        sockets.Source.Input("source", optional=True, tooltip="Folders of images, from Image Folder Dataset."),
        io.Image.Input("images", optional=True, tooltip="Images from other nodes, as a batch or a list."),
        io.String.Input(
            "texts",
            optional=True,
            force_input=True,
            tooltip="Captions of these images: one per image, or one for all. Several lines are variants.",
        ),
        io.Vae.Input("vae", optional=True, tooltip="Encodes the images. Load VAE (On Demand) frees it after use."),
        io.Clip.Input("clip", optional=True, tooltip="Encodes the captions. Load CLIP (On Demand) frees it after use."),
        *main,
        more,
        *rare,
    ]
