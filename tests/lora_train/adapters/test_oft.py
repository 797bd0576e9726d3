"""OFT: rotations of output channels, live, merged and out of a file."""

import pytest
import torch
from torch.nn import functional as F

from streamcache.errors import TrainError
from streamcache.lora_train.adapters import AdapterSettings, build_network, lora_file
from streamcache.lora_train.adapters.layer import Layer
from streamcache.lora_train.adapters.oft import Oft
from streamcache.lora_train.config import TrainConfig

from .toy import X


def settings(**changes):
    return AdapterSettings(**{"kind": "oft", "rank": 3, "targets": "all", **changes})


def moved(network, seed=1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in network.parameters():
            value += 0.2 * torch.randn(value.shape, generator=generator)
    return network


def test_its_start_is_the_base_model(toy):
    expected = toy(X)
    with build_network(toy, settings()).attached(toy.adaptable()):
        torch.testing.assert_close(toy(X), expected, rtol=1e-5, atol=1e-6)


def test_its_first_gradient_is_not_zero(toy):
    network = build_network(toy, settings())
    with network.attached(toy.adaptable()):
        toy(X).square().mean().backward()
    assert all(value.grad.abs().max() > 0 for value in network.parameters())


def test_the_live_adapter_equals_turned_weights(toy):
    """Every sort of layer, with and without bias, grouped too."""
    network = moved(build_network(toy, settings()))
    with network.attached(toy.adaptable()), torch.no_grad():
        live = toy(X)
    for name, adapter in network.items():
        weight = toy.adaptable()[name].weight
        rows = weight.unflatten(0, adapter.factors.blocks.shape[:2])
        weight.data = torch.einsum("knm,kn...->km...", adapter.factors.rotation(), rows).flatten(0, 1).detach()
    with torch.no_grad():
        torch.testing.assert_close(live, toy(X), rtol=1e-4, atol=1e-5)


def test_it_keeps_lengths():
    made = Oft(Layer(0, 5, 12), torch.randn(3, 4, 4), 0.0)
    out = torch.randn(7, 12)
    turned = made(out)
    assert not torch.allclose(turned, out, atol=0.1)
    torch.testing.assert_close(turned.norm(dim=1), out.norm(dim=1))


def test_alpha_bounds_how_far_it_turns():
    blocks = torch.randn(3, 4, 4)
    free, bound = (Oft(Layer(0, 5, 12), blocks, alpha).rotation() for alpha in (0.0, 0.1))
    one = torch.eye(4)
    assert (bound - one).norm() < 0.3 < (free - one).norm()


@pytest.mark.parametrize(("outputs", "groups", "size"), [(12, 1, 3), (12, 6, 2), (7, 1, 1), (8, 1, 2)])
def test_blocks_divide_the_outputs_and_stay_within_groups(outputs, groups, size):
    made = Oft.create(Layer(2, 4, outputs, (3, 3), groups=groups), 3, settings(), torch.Generator())
    assert made.blocks.shape == (outputs // size, size, size)


def test_saved_and_read_again_it_is_the_same(toy):
    network = moved(build_network(toy, settings(alpha=0.5)))
    again = build_network(toy, settings(), lora_file.split_lora(network.tensors()))
    for (name, value), (other, found) in zip(network.named_parameters(), again.named_parameters(), strict=True):
        assert name == other and torch.equal(value, found)
    assert {adapter.factors.alpha for _, adapter in again.items()} == {0.5}


def test_blocks_for_another_model_are_refused(toy):
    tensors = build_network(toy, settings()).tensors()
    wrong = {key: F.pad(value, (0, 1, 0, 1)) if value.ndim == 3 else value for key, value in tensors.items()}
    with pytest.raises(TrainError, match="a LoRA for another model"):
        build_network(toy, settings(), lora_file.split_lora(wrong))


@pytest.mark.parametrize("changes", [{"dora": True}, {"adapter_dropout": 0.1}])
def test_dora_and_dropout_are_refused(changes):
    with pytest.raises(TrainError, match=f'{next(iter(changes))} = .*: not possible with adapter = "oft"'):
        TrainConfig(adapter="oft", **changes)
