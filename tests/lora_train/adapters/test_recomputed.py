"""Weights that are computed again in the backward pass: the same gradients, without keeping full matrices."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from streamcache.lora_train.adapters.layer import Layer
from streamcache.lora_train.adapters.recomputed import apply_recomputed

LAYERS = {
    "linear": (Layer(0, 24, 20), (2, 9, 24)),
    "convolution": (Layer(2, 6, 8, (3, 3), (2, 1), (1, 1), (1, 2)), (2, 6, 9, 8)),
    "grouped": (Layer(2, 2, 9, (3, 3), (1, 1), (1, 1), (1, 1), groups=3), (2, 6, 9, 8)),
    "padding by name": (Layer(1, 6, 8, (3,), (1,), "same", (1,)), (2, 6, 9)),
    "reflected": (Layer(1, 6, 8, (3,), (1,), (1,), (1,), pad=(1, 1), pad_mode="reflect"), (2, 6, 9)),
}


def make(layer: Layer, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (a @ b).reshape(layer.shape) * c


def case(name: str) -> tuple[Layer, Tensor, list[Tensor]]:
    layer, shape = LAYERS[name]
    random = torch.Generator().manual_seed(0)
    drawn = [torch.randn(size, generator=random) for size in (shape, (layer.outputs, 3), (3, layer.fan_in), (1,))]
    x, *factors = (value.requires_grad_() for value in drawn)
    return layer, x, factors


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_equal_those_of_kept_weights(name: str, precision: str):
    found = []
    for recomputed in (False, True):
        layer, x, factors = case(name)
        lower = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext()
        with lower:
            if recomputed:
                out = apply_recomputed(layer, x, lambda *f, layer=layer: make(layer, *f), factors)
            else:
                out = layer.apply(x, make(layer, *factors))
        out.float().square().sum().backward()
        found.append([out.detach(), x.grad, *(factor.grad for factor in factors)])
    for kept, again in zip(*found, strict=True):
        torch.testing.assert_close(again, kept, rtol=1e-5 if precision == "fp32" else 2e-2, atol=1e-5)


def test_only_the_input_and_the_factors_are_kept():
    layer, x, factors = case("linear")
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        apply_recomputed(layer, x, lambda *f: make(layer, *f), factors)
    assert sorted(map(id, kept)) == sorted(map(id, [x, *factors]))


def test_an_input_without_a_gradient_gets_none():
    layer, x, factors = case("convolution")
    apply_recomputed(layer, x.detach(), lambda *f: make(layer, *f), factors).sum().backward()
    assert x.grad is None and all(factor.grad is not None for factor in factors)
