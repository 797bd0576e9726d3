"""A LoRA file as ComfyUI reads it, and whether it fits a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import comfy.lora
import comfy.lora_convert
import comfy.utils
from torch import Tensor

from ....lora_train import TrainError

KIND_LORA = "lora"  # the name of ComfyUI's adapter for up and down


def read_lora_file(path: Path) -> tuple[Mapping[str, Tensor], Any]:
    """The tensors and the metadata of a LoRA file."""
    try:
        return comfy.utils.load_torch_file(str(path), safe_load=True, return_metadata=True)
    except Exception as error:  # whatever the reader of this kind of file raises
        reason = " ".join(str(error).split()) or type(error).__name__
        raise TrainError(
            f"{path.name}: not a LoRA file that ComfyUI can read ({reason}); choose another file"
        ) from None


def touches_clip(tensors: Mapping[str, Tensor], clip: Any) -> bool:
    """Whether a LoRA changes the text encoder."""
    keys = comfy.lora.model_lora_keys_clip(clip.cond_stage_model, {})
    return bool(_patches(tensors, keys))


def check_lora(path: Path, patcher: Any, clip: Any) -> str:
    """A remark if a LoRA fits only in part. One that does not fit is refused: ComfyUI would only write to its log."""
    tensors, _ = read_lora_file(path)
    keys = comfy.lora.model_lora_keys_unet(patcher.model, {})
    own = dict(keys)
    if clip is not None:
        own = comfy.lora.model_lora_keys_clip(clip.cond_stage_model, own)
    patches = _patches(tensors, own)
    if not patches:
        first = next(iter(tensors), "nothing")
        raise TrainError(
            f'{path.name}: a LoRA for another model: none of its {len(tensors):,} tensors (the first is "{first}") '
            "belongs to a layer of this model; choose one that was trained on this model"
        )
    for layer, found, expected in _misfits(_patches(tensors, keys), patcher.model.state_dict()):
        raise TrainError(
            f"{path.name}: a LoRA for another model: its {layer} has {found:,} values, that of this model "
            f"{expected:,}; choose one that was trained on this model"
        )
    left = sum(not _belongs(name, own) for name in comfy.lora_convert.convert_lora(dict(tensors)))
    return f"{path.name}: {left:,} of {len(tensors):,} tensors belong to no layer of this model" if left else ""


def _patches(tensors: Mapping[str, Tensor], keys: Mapping[str, Any]) -> dict[Any, Any]:
    return comfy.lora.load_lora(comfy.lora_convert.convert_lora(dict(tensors)), keys, log_missing=False)


def _misfits(patches: Mapping[Any, Any], weights: Mapping[str, Tensor]) -> Iterator[tuple[str, int, int]]:
    """Layers, and the numbers of values that the LoRA and the model have there, where they differ."""
    for place, patch in patches.items():
        name, offset = (place, None) if isinstance(place, str) else (place[0], place[1])
        weight, found = weights.get(name), _values(patch)
        if weight is None or found is None or not weight.is_floating_point():  # packed weights have other shapes
            continue
        shape = list(weight.shape)
        if offset is not None:
            shape[offset[0]] = offset[2]
        if found != math.prod(shape):
            yield name, found, math.prod(shape)


def _values(patch: Any) -> int | None:
    """How many values of a weight a LoRA or a full difference changes; None for other kinds."""
    if isinstance(patch, tuple):
        return patch[1][0].numel() if patch[0] == "diff" else None
    if patch.name != KIND_LORA:
        return None
    up, down, _, middle, _, reshaped = patch.weights
    if middle is not None or reshaped is not None:
        return None
    return len(up) * math.prod(down.shape[1:]) if up[0].numel() == len(down) else 0


def _belongs(name: str, keys: Mapping[str, Any]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:count]) in keys for count in range(1, len(parts) + 1))
