"""What a host model's modules are called in LoRA files, in the namings that the host and other tools read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import comfy.lora
import comfy.model_base
import comfy.utils

from ....lora_train import Naming

PREFIX = "diffusion_model."


def export_names(model: Any, names: Iterable[str], naming: Naming) -> dict[str, str]:
    """Module name → key prefix. Modules that a naming has no single name for (diffusers splits qkv) are left out."""
    if naming == "comfyui":
        return {name: PREFIX + name for name in names}
    diffusers = _diffusers_names(model)
    if naming == "diffusers":
        return {name: diffusers[name] for name in names if name in diffusers}
    return {name: f"lora_unet_{_kohya_base(model, diffusers, name).replace('.', '_')}" for name in names}


def _kohya_base(model: Any, diffusers: dict[str, str], name: str) -> str:
    # sd-scripts calls the layers of SD 1 and 2 as diffusers does, and those of every later model by their own names.
    old = not isinstance(model, (comfy.model_base.SDXL, comfy.model_base.SDXLRefiner))
    if old and diffusers.get(name, "").startswith("unet."):
        return diffusers[name].removeprefix("unet.")
    return name


def _diffusers_names(model: Any) -> dict[str, str]:
    unet = comfy.utils.unet_to_diffusers(model.model_config.unet_config)
    if unet:
        weights = {theirs: ours for theirs, ours in unet.items() if theirs.endswith(".weight")}
        return {_bare(ours): f"unet.{_bare(theirs)}" for theirs, ours in weights.items()}
    names: dict[str, str] = {}
    for theirs, target in comfy.lora.model_lora_keys_unet(model, {}).items():
        # A target with an offset is a part of a fused layer, which has no name as a whole.
        if theirs.startswith("transformer.") and isinstance(target, str) and target.startswith(PREFIX):
            names.setdefault(_bare(target.removeprefix(PREFIX)), theirs)
    return names


def _bare(key: str) -> str:
    return key.removesuffix(".weight")
