"""The layers of a ComfyUI model: which can be adapted, presets, blocks, and their names in LoRA files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import comfy.lora
import comfy.model_base
import comfy.utils
import torch
from torch import nn

from ....lora_train import LayerRows, Naming

PREFIX = "diffusion_model."  # of module names in ComfyUI's own LoRA files
# Endings of the names that only Flux.2 has in diffusers; ComfyUI knows them for Flux.1 too.
FLUX_2 = (".attn.to_qkv_mlp_proj", ".attn.to_out", ".linear_in", ".linear_out")
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

# What the families call these layers, as whole parts of a module's path. Layers that fuse attention and MLP (Flux:
# linear1, linear2) count as attention.
ATTENTION = re.compile(
    r"(^|[._])(attn\d*|attention\d*|qkv|[qkv]_proj|to_[qkv]|to_out|linear[12])([._]|$)|_attn(_|\.|$)|(^|\.)attn_"
)
MLP = re.compile(r"(^|[._])(mlp[a-z]*|ff|ffn|feed_forward|fc\d)([._]|$)|_mlp(_|\.|$)")


def adaptable(diffusion_model: nn.Module) -> dict[str, nn.Module]:
    """Every linear and convolution by its path, including those of quantizing packs' own classes."""
    return {name: module for name, module in diffusion_model.named_modules() if _is_layer(module)}


def groups(diffusion_model: nn.Module) -> dict[str, list[str]]:
    """Target presets: attention and MLP inside the repeated blocks, and all layers."""
    names = list(adaptable(diffusion_model))
    inside = _names_inside(diffusion_model, names)
    attention = {name for name in inside if ATTENTION.search(name)}
    both = attention | {name for name in inside if MLP.search(name)}
    presets = {"attention": attention, "attention+mlp": both, "all": set(names)}
    return {preset: [name for name in names if name in chosen] for preset, chosen in presets.items() if chosen}


def blocks(diffusion_model: nn.Module) -> list[nn.Module]:
    """The repeated modules of the model, each called as one unit."""
    found: list[nn.Module] = []
    for _, container in _containers(diffusion_model):
        found += _called_parts(container)
    return found


def export_names(model: Any, names: Iterable[str], naming: Naming) -> dict[str, str]:
    """Module name → key prefix. Modules without a single name (diffusers splits qkv) are skipped."""
    if naming == "comfyui":
        return {name: PREFIX + name for name in names}
    diffusers = _diffusers_names(model)
    if naming == "diffusers":
        return {name: diffusers[name] for name in names if name in diffusers}
    return {name: f"lora_unet_{_kohya_base(model, diffusers, name).replace('.', '_')}" for name in names}


def other_names(model: Any, modules: dict[str, nn.Module]) -> dict[str, LayerRows]:
    """Every prefix that ComfyUI's LoRA loader knows → the layer, or the rows of a fused layer, that it changes."""
    names: dict[str, LayerRows] = {}
    for theirs, target in comfy.lora.model_lora_keys_unet(model, {}).items():
        key, offset, function = target if isinstance(target, tuple) and len(target) == 3 else (*_pair(target), None)
        module = modules.get(_bare(key.removeprefix(PREFIX)))
        if module is None or not key.endswith(".weight"):
            continue
        rows = None if offset is None and function is None else _rows(offset, function, module)
        if rows is None or rows:
            names[theirs] = LayerRows(_bare(key.removeprefix(PREFIX)), rows)
    return names


def _pair(target: Any) -> tuple[str, Any]:
    return (target, None) if isinstance(target, str) else (target[0], target[1])


def _rows(offset: tuple[int, int, int] | None, function: Any, module: nn.Module) -> Sequence[int]:
    """Which row of the layer each row of a file's entry changes; empty if it is not a matter of rows."""
    outputs = int(getattr(module, "out_features", 0))
    axis, start, count = offset or (0, 0, outputs)
    rows = range(start, start + count)
    if axis != 0 or rows.stop > outputs:
        return ()
    if function is None:
        return rows
    # Functions reorder rows: row i of the change is row order[i] of the entry.
    order = function(torch.arange(count)[:, None])[:, 0]
    places = (start + order.argsort()).tolist()
    return places if order.sort().values.tolist() == list(range(count)) else ()


def _is_layer(module: nn.Module) -> bool:
    if not hasattr(module, "weight_function") or getattr(module, "transposed", False):
        return False
    # A stack of experts has the sizes of a linear, but is never called: models take the weight of each expert from it.
    if type(module).forward is nn.Module.forward:
        return False
    return isinstance(module, (nn.Linear, *CONVOLUTIONS)) or hasattr(module, "in_features")


def _containers(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The outermost lists and sequences of blocks (not of bare layers)."""
    for name, child in module.named_children():
        place = f"{path}.{name}" if path else name
        if isinstance(child, (nn.ModuleList, nn.Sequential)):
            if _called_parts(child):
                yield place, child
        else:
            yield from _containers(child, place)


def _called_parts(container: nn.Module) -> list[nn.Module]:
    """A UNet iterates over its sequences itself: it calls their parts, not the sequence."""
    parts: list[nn.Module] = []
    for child in container.children():
        if isinstance(child, (nn.Sequential, nn.ModuleList)):
            parts += _called_parts(child)
        elif not _is_layer(child) and any(_is_layer(inner) for inner in child.modules()):
            parts.append(child)
    return parts


def _names_inside(diffusion_model: nn.Module, names: list[str]) -> list[str]:
    places = tuple(f"{place}." for place, _ in _containers(diffusion_model))
    return [name for name in names if name.startswith(places)]


def _kohya_base(model: Any, diffusers: dict[str, str], name: str) -> str:
    # sd-scripts names the layers of SD 1 and 2 as diffusers does, and those of every later model by their own names.
    old = not isinstance(model, (comfy.model_base.SDXL, comfy.model_base.SDXLRefiner))
    if old and diffusers.get(name, "").startswith("unet."):
        return diffusers[name].removeprefix("unet.")
    return name


def _diffusers_names(model: Any) -> dict[str, str]:
    unet = comfy.utils.unet_to_diffusers(model.model_config.unet_config)
    if unet:
        # The table has two names for the layers of the second embedding: unCLIP's, and that of every other model.
        other = "add_embedding." if isinstance(model, comfy.model_base.SD21UNCLIP) else "class_embedding."
        known = {theirs: ours for theirs, ours in unet.items() if not theirs.startswith(other)}
        weights = {theirs: ours for theirs, ours in known.items() if theirs.endswith(".weight")}
        return {_bare(ours): f"unet.{_bare(theirs)}" for theirs, ours in weights.items()}
    second = model.model_config.unet_config.get("image_model") == "flux2"
    names: dict[str, str] = {}
    for theirs, target in comfy.lora.model_lora_keys_unet(model, {}).items():
        # A target with an offset is part of a fused layer; the whole layer has no name.
        if theirs.startswith("transformer.") and isinstance(target, str) and target.startswith(PREFIX):
            ours = _bare(target.removeprefix(PREFIX))
            if second and (theirs.endswith(FLUX_2) or ours not in names):
                names[ours] = theirs.replace(".time_text_embed.", ".time_guidance_embed.")
            elif not second and not theirs.endswith(FLUX_2):
                names.setdefault(ours, theirs)
    return names


def _bare(key: str) -> str:
    return key.removesuffix(".weight")
