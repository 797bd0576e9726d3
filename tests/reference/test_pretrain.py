"""A minute's base model."""

import pytest
import torch

from streamcache.reference.model import ModelSize
from streamcache.reference.pretrain import PretrainConfig, pretrain

PREDICTIONS = pytest.mark.parametrize("prediction", ["flow", "eps", "v"])


@PREDICTIONS
def test_pretraining_lowers_the_loss_and_is_reproducible(prediction):
    size, losses = ModelSize(width=32, depth=1, heads=2, prediction=prediction), []
    config = PretrainConfig(steps=60, batch_size=16, images=24, warmup=3)
    first = pretrain(config, size, lambda step, steps, loss: losses.append(loss))
    assert sum(losses[-15:]) < 0.8 * sum(losses[:15])
    again = pretrain(config, size)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not any(parameter.requires_grad for parameter in first.parameters())
