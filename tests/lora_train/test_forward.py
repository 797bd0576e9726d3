"""A module's forward, replaced for a while."""

import pytest
import torch
from torch import nn

from streamcache.lora_train.forward import replaced_forward


def test_a_forward_of_the_class_leaves_nothing_behind():
    layer = nn.Linear(2, 2)
    with replaced_forward(layer, lambda x: x + 1):
        assert torch.equal(layer(torch.zeros(2)), torch.ones(2))
    assert "forward" not in vars(layer)


def test_a_patched_forward_is_back_after_an_error_also_from_under_several():
    layer, patch = nn.Linear(2, 2), lambda x: x * 2
    layer.forward = patch
    with pytest.raises(RuntimeError), replaced_forward(layer, lambda x: x), replaced_forward(layer, lambda x: x):
        raise RuntimeError
    assert layer.forward is patch
