"""DoRA: magnitudes next to any kind of adapter."""

import pytest
import torch
from torch.nn import functional as F

from streamcache.errors import TrainError
from streamcache.lora_train.adapters import build_network

from .toy import AXES, KINDS, Quantized, X, merged, run, settings, stir


@AXES
def test_a_fresh_dora_changes_nothing(toy, axis):
    found = run(toy, build_network(toy, settings(dora=True, dora_axis=axis)))
    torch.testing.assert_close(found, toy(X), rtol=0, atol=1e-6)


@AXES
@KINDS
def test_dora_equals_the_merged_weights(toy, kind, axis):
    network = stir(build_network(toy, settings(kind=kind, dora=True, dora_axis=axis)))
    torch.testing.assert_close(run(toy, network), merged(toy, network)(X), rtol=1e-4, atol=1e-5)


def test_dora_trains_magnitude_factors_and_nothing_of_the_base(toy):
    network = stir(build_network(toy, settings(dora=True)))
    run(toy, network).square().mean().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert all(parameter.grad is None for parameter in toy.parameters())


def test_dora_on_integer_weights_is_refused_with_the_remedy(toy):
    toy.first = Quantized(toy.first)
    with pytest.raises(TrainError, match=r"first: DoRA.*int8.*floats \(24, 12\).*dora = false"):
        build_network(toy, settings(targets="first", dora=True))


class Packed(torch.Tensor):
    """A weight of bytes that knows its floats, as quantization libraries make them."""

    @staticmethod
    def __new__(cls, weight):
        step = weight.abs().max() / 127
        packed = torch.Tensor._make_subclass(cls, (weight / step).round().to(torch.int8))
        packed.step = step
        return packed

    def dequantize(self):
        return self.as_subclass(torch.Tensor).float() * self.step


@AXES
def test_dora_on_weights_that_can_be_dequantized_equals_the_merged_weights(toy, axis):
    packed = Packed(toy.second.weight.detach())
    toy.second.weight.data = packed.dequantize()
    network = stir(build_network(toy, settings(targets="second", dora=True, dora_axis=axis)))
    expected = merged(toy, network)(X)
    floats = toy.second.weight
    del toy.second.weight
    toy.second.weight = packed
    toy.second.forward = lambda x: F.linear(x, floats)
    torch.testing.assert_close(run(toy, network), expected, rtol=1e-4, atol=1e-5)
