"""A layer's operation with a weight that is computed from small factors, and computed again in the backward pass.

Autograd would keep the full weight and the matrices that it is made of until then: as much memory as the model's own
weights. `torch.utils.checkpoint` would also repeat the layer's operation, which takes most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .layer import Layer


def apply_recomputed(layer: Layer, x: Tensor, make: Callable[..., Tensor], factors: Sequence[Tensor]) -> Tensor:
    """`layer.apply(x, make(*factors))`; for the backward pass only x and the factors are kept."""
    return _Recomputed.apply(x, layer, make, *factors)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Layer, make: Callable[..., Tensor], *factors: Tensor) -> Tensor:
        ctx.layer, ctx.make = layer, make
        kind = x.device.type
        ctx.autocast = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        ctx.save_for_backward(x, *factors)
        return layer.apply(x, make(*factors))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Any, ...]:
        (gradient,), (x, *factors) = grad_outputs, ctx.saved_tensors
        kind, dtype, enabled = ctx.autocast
        with torch.enable_grad(), torch.autocast(kind, dtype, enabled=enabled):
            own = [factor.detach().requires_grad_() for factor in factors]
            weight = ctx.make(*own)
            if not _has_formula(ctx.layer):
                x = x.detach().requires_grad_()
                of_x, *of_factors = torch.autograd.grad(ctx.layer.apply(x, weight), [x, *own], gradient)
                return (of_x, None, None, *of_factors)
        computed = gradient.dtype  # of the forward pass
        needed = ctx.needs_input_grad[0]
        of_x, of_weight = _gradients(ctx.layer, gradient, x.to(computed), weight.detach().to(computed), needed)
        of_factors = torch.autograd.grad(weight, own, of_weight.to(weight.dtype))
        return (None if of_x is None else of_x.to(x.dtype), None, None, *of_factors)


def _has_formula(layer: Layer) -> bool:
    return layer.dims == 0 or (layer.pad_mode == "zeros" and not isinstance(layer.padding, str))


def _gradients(
    layer: Layer, gradient: Tensor, x: Tensor, weight: Tensor, needs_x: bool
) -> tuple[Tensor | None, Tensor]:
    """The gradients of a layer's input and weight."""
    if layer.dims == 0:
        rows = gradient.reshape(-1, layer.outputs)
        return gradient @ weight if needs_x else None, rows.T @ x.reshape(-1, layer.inputs)
    assert not isinstance(layer.padding, str)
    of_x, of_weight, _ = torch.ops.aten.convolution_backward(
        gradient, x, weight, None, layer.stride, layer.padding, layer.dilation, False, [0] * layer.dims, layer.groups,
        [needs_x, True, False],
    )  # fmt: skip
    return of_x, of_weight
