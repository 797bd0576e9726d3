"""DoRA: the lengths of a weight's columns (or rows) are trained separately from their directions.

W' = m · (W + ΔW) / ‖W + ΔW‖. Along the input axis, ‖·‖ and m have one value per input channel. LyCORIS began that way,
OneTrainer writes it, and it is the only form that ComfyUI applies as trained: for the output axis, which PEFT uses,
ComfyUI 0.33 divides by ‖W‖ instead. The backward pass treats the norm as a constant, as the paper recommends.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ...errors import TrainError
from ..memory import is_plain
from .layer import Layer

Axis = Literal["input", "output"]
AXES: tuple[Axis, ...] = ("input", "output")


def norms(weight: Tensor, axis: Axis) -> Tensor:
    """[channels] the norm of the weights of each input (or output) channel."""
    weight = weight.transpose(0, 1) if axis == "input" else weight
    return weight.flatten(1).norm(dim=1)


def ratios(magnitude: Tensor, base: Tensor, change: Tensor, axis: Axis) -> Tensor:
    """[channels] m / ‖W + ΔW‖, differentiable in m alone."""
    with torch.no_grad():
        length = norms(base.to(change.device) + change, axis).clamp(min=torch.finfo(torch.float32).tiny)
    return magnitude / length


def base_weight(name: str, module: nn.Module, layer: Layer) -> Tensor:
    """The base weight in float32. No other code of the adapters reads it."""
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor) and hasattr(type(weight), "dequantize") and not is_plain(weight):
        weight = weight.dequantize()
    if not isinstance(weight, Tensor) or tuple(weight.shape) != layer.shape or not weight.is_floating_point():
        found = "none" if weight is None else f"{weight.dtype} {tuple(weight.shape)}"
        raise TrainError(
            f"{name}: DoRA needs the norms of the base weight; found {found}, expected floats {layer.shape}; "
            "set dora = false for this quantized model"
        )
    return weight.detach().to(torch.float32)


def to_scale(magnitude: Tensor, layer: Layer, axis: Axis) -> Tensor:
    """[channels] → the `dora_scale` of a LoRA file, [1, inputs, 1, …] or [outputs, 1, 1, …]."""
    lead = (1, -1) if axis == "input" else (-1, 1)
    return magnitude.reshape(*lead, *[1] * layer.dims)


def from_scale(scale: Tensor, layer: Layer, where: str) -> tuple[Tensor, Axis]:
    """A file's `dora_scale` → [channels] and its axis, known from its shape. A flat one is PEFT's: output axis."""
    flat = scale.float().flatten().clone()
    along_input = scale.ndim > 1 and scale.shape[0] == 1 and scale.shape[1] == layer.inputs
    if along_input and not (layer.outputs == 1 and layer.inputs == 1):
        return flat, "input"
    if len(flat) == layer.outputs:
        return flat, "output"
    raise TrainError(
        f"{where}: found a dora_scale of {tuple(scale.shape)}, expected (1, {layer.inputs}, …) "
        f"or ({layer.outputs}, 1, …): a LoRA for another model"
    )
