"""Base layers whose weights are computed for each use: cast, dequantized, or copied from another device.

Autograd would keep each of these copies until the backward pass, that is, the whole model in compute precision. The
base is not trained, so its layers only pass gradients on and can compute their weights again for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import comfy.ops
import torch
from torch import Tensor, nn
from torch.nn import grad as convolution_gradients

from ....lora_train import is_plain, replaced_forward

INPUT_GRADIENTS = {
    3: convolution_gradients.conv1d_input,
    4: convolution_gradients.conv2d_input,
    5: convolution_gradients.conv3d_input,
}


@contextmanager
def frozen_layers(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Inside the `with`, these layers keep no computed weights. Their own `forward` is restored afterwards."""
    with ExitStack() as restore:
        for layer in {id(layer): layer for layer in layers}.values():
            restore.enter_context(replaced_forward(layer, _passing(layer, layer.forward)))
        yield


@dataclass(frozen=True)
class _Layer:
    """A base layer and its own `forward`."""

    module: nn.Module
    forward: Callable[..., Tensor]
    known: bool  # whether the operation is one of torch's, whose gradient is known


class _Pass(torch.autograd.Function):
    """Runs the layer; backward computes its weights again for the gradient of the input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: _Layer) -> Tensor:
        ctx.layer, ctx.shape, ctx.dtype = layer, x.shape, x.dtype
        if not layer.known:
            ctx.save_for_backward(x)
        return layer.forward(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (grad,) = grad_outputs
        if ctx.layer.known:
            return _input_gradient(ctx.layer.module, grad, ctx.shape).to(ctx.dtype), None
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            out = ctx.layer.forward(x)
        return torch.autograd.grad(out, x, grad)[0], None


def _passing(module: nn.Module, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    layer = _Layer(module, forward, _is_known(module))

    def wrapped(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if args or kwargs or not (torch.is_grad_enabled() and x.requires_grad) or not _makes_weights(module, x):
            return forward(x, *args, **kwargs)
        return _Pass.apply(x, layer)

    return wrapped


def _makes_weights(module: nn.Module, x: Tensor) -> bool:
    weight = module.weight
    if hasattr(module, "_v") or module.weight_function or not is_plain(weight):
        return True
    return weight.device != x.device or weight.dtype != x.dtype


def _is_known(module: nn.Module) -> bool:
    ours = {getattr(type_, "forward_comfy_cast_weights", None) for type_ in _host_types()} - {None}
    padded = getattr(module, "padding_mode", "zeros") != "zeros" or isinstance(getattr(module, "padding", 0), str)
    return getattr(type(module), "forward_comfy_cast_weights", None) in ours and not padded


def _host_types() -> tuple[type, ...]:
    made = comfy.ops.disable_weight_init
    return made.Linear, made.Conv1d, made.Conv2d, made.Conv3d


def _input_gradient(module: Any, grad: Tensor, shape: torch.Size) -> Tensor:
    weight, bias, stream = comfy.ops.cast_bias_weight(module, grad, offloadable=True)
    try:
        if weight.ndim == 2:
            return grad @ weight
        gradient = INPUT_GRADIENTS[weight.ndim]
        return gradient(shape, weight, grad, module.stride, module.padding, module.dilation, module.groups)
    finally:
        comfy.ops.uncast_bias_weight(module, weight, bias, stream)
