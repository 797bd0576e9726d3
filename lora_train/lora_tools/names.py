"""The names of layers in LoRA files: which naming they are in, which mean the same layer, and their blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..adapters import FLAT_WRAPPINGS, WRAPPINGS

# How prefixes begin → the naming. Others have the plain names of a model's layers, of any naming.
_BEGINNINGS = {
    "diffusion_model.": "comfyui",
    "model.diffusion_model.": "comfyui",
    "text_encoders.": "comfyui",
    "lora_unet_": "kohya",
    "lora_te": "kohya",
    "lora_transformer_": "kohya",
    "lycoris_": "lycoris",
    "transformer.": "diffusers",
    "unet.": "diffusers",
    "text_encoder": "diffusers",
    "base_model.model.": "peft",
}
PLAIN = "plain"
_TEXT_ENCODER = re.compile(r"(lora_)?(te\d*|text_encoders?(_\d+)?|text_model|clip_[lg]|t5xxl)[._]")
_BLOCK = re.compile(r"(.*?)[._](\d+)(?:[._]|$)")
# ComfyUI's names of a UNet's layers. kohya names those of SDXL alike, and those of SD 1 and 2 as diffusers does.
_UNET = re.compile(r"(?:input_blocks|middle_block|output_blocks)\.")


class Block(NamedTuple):
    """A block of a model: the list that it is in, and its number there."""

    group: str
    number: int | None


def naming_of(prefixes: Iterable[str]) -> str:
    """The naming that most of the prefixes are in."""
    counts: dict[str, int] = {}
    for prefix in prefixes:
        naming = next((name for begin, name in _BEGINNINGS.items() if prefix.startswith(begin)), PLAIN)
        counts[naming] = counts.get(naming, 0) + 1
    return max(counts, key=lambda name: counts[name], default=PLAIN)


def same_name(prefix: str) -> str:
    """What all spellings of a layer's name have in common: `double_blocks_0_img_attn_qkv`."""
    return bare_name(prefix).replace(".", "_")


def bare_name(prefix: str) -> str:
    """The name without what trainers put before it."""
    for beginning in (*WRAPPINGS, *FLAT_WRAPPINGS):
        if prefix.startswith(beginning):
            return bare_name(prefix[len(beginning) :])
    return prefix.replace(".processor.", ".")


def component_of(prefix: str) -> str:
    """The part of the pipeline that a layer is in."""
    match = _TEXT_ENCODER.match(prefix.removeprefix("base_model.model."))
    return match[2] if match else "model"


def block_of(prefix: str) -> Block:
    name = bare_name(prefix)
    match = _BLOCK.match(name)
    return Block(match[1], int(match[2])) if match else Block(name.partition(".")[0], None)


def respell(prefix: str, naming: str, metadata: Mapping[str, str]) -> str | None:
    """The prefix in another naming, if that follows from the prefix itself; None if it takes the model."""
    own = naming_of([prefix])
    if own == naming:
        return prefix.removeprefix("model.") if naming == "comfyui" else prefix
    if (own, naming) != ("comfyui", "kohya") or component_of(prefix) != "model":
        return None
    name = bare_name(prefix)
    if _UNET.match(name) and not is_sdxl(metadata):
        return None
    return f"lora_unet_{name.replace('.', '_')}"


def is_sdxl(metadata: Mapping[str, str]) -> bool:
    """Whether a file says that its base is SDXL."""
    said = f"{metadata.get('modelspec.architecture', '')} {metadata.get('ss_base_model_version', '')}"
    return bool(re.search(r"sdxl|stable-diffusion-xl", said.lower()))
