"""The moving average of the trained weights."""

import pytest
import torch
from torch import nn

from streamcache.lora_train.step import Ema


def module() -> nn.Linear:
    linear = nn.Linear(2, 1, bias=False)
    nn.init.constant_(linear.weight, 0.0)
    return linear


def test_the_average_follows_the_weights_with_a_decay_that_warms_up():
    linear, expected = module(), 0.0
    ema = Ema(linear, 0.5)
    for step in range(1, 12):
        nn.init.constant_(linear.weight, float(step))
        ema.update()
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    assert ema.tensors()["weight"][0, 0].item() == pytest.approx(expected)


def test_applied_uses_the_average_and_restores_the_weights_after_an_error():
    linear = module()
    ema = Ema(linear, 0.9)
    nn.init.constant_(linear.weight, 4.0)
    with pytest.raises(RuntimeError), ema.applied():
        assert linear.weight.abs().max() == 0
        raise RuntimeError
    assert (linear.weight == 4).all()


def test_a_state_continues_bit_for_bit():
    first, second = module(), module()
    one, other = Ema(first, 0.9), Ema(second, 0.9)
    for value in (0.3, 0.7):
        nn.init.constant_(first.weight, value)
        one.update()
    other.load(one.tensors())
    for linear, ema in ((first, one), (second, other)):
        nn.init.constant_(linear.weight, 1.1)
        ema.update()
    assert torch.equal(one.tensors()["weight"], other.tensors()["weight"]) and other.updates == 3


def test_frozen_weights_have_no_average():
    linear = nn.Linear(2, 2)
    linear.bias.requires_grad_(False)
    assert set(Ema(linear, 0.9).tensors()) == {"weight", "~updates"}


def test_half_precision_weights_are_averaged_in_float32():
    linear = module().bfloat16()
    ema = Ema(linear, 0.999)
    with ema.applied():
        assert linear.weight.dtype == torch.bfloat16
    assert ema.tensors()["weight"].dtype == torch.float32
