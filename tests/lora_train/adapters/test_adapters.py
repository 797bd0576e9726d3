"""Adapters: their start, their mathematics, their hooks, and the base model that they leave as it was."""

import pytest
import torch
from torch import nn

from streamcache.errors import TrainError
from streamcache.lora_train.adapters import build_network
from streamcache.lora_train.config import TrainConfig

from .toy import KINDS, Quantized, X, merged, run, settings, stir


@KINDS
def test_a_fresh_adapter_changes_nothing(toy, kind):
    assert torch.equal(run(toy, build_network(toy, settings(kind=kind))), toy(X))


def test_defect_6_down_is_random_up_is_zero_and_alpha_is_not_a_parameter(toy):
    network = build_network(toy, settings())
    for _, adapter in network.items():
        assert adapter.factors.up.abs().max() == 0 and adapter.factors.down.std() > 0
        assert adapter.factors.scale == pytest.approx(2 / 3)
    assert all(name.rpartition(".")[2] in ("up", "down") for name, _ in network.named_parameters())


@KINDS
def test_defect_7_the_seed_alone_decides_the_start(toy, kind):
    torch.manual_seed(1)
    first = build_network(toy, settings(kind=kind, seed=4)).tensors()
    torch.manual_seed(2)
    again = build_network(toy, settings(kind=kind, seed=4)).tensors()
    other = build_network(toy, settings(kind=kind, seed=5)).tensors()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@KINDS
def test_hooks_equal_the_merged_weights(toy, kind):
    network = stir(build_network(toy, settings(kind=kind)))
    torch.testing.assert_close(run(toy, network), merged(toy, network)(X), rtol=1e-4, atol=1e-5)


@KINDS
def test_every_factor_of_a_stirred_adapter_gets_a_gradient(toy, kind):
    network = stir(build_network(toy, settings(kind=kind)))
    run(toy, network).square().mean().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in network.parameters())


def test_a_rank_stabilised_scale_divides_by_the_root_of_the_rank(toy):
    network = build_network(toy, settings(rank=4, rank_stabilised=True, targets="first"))
    factors = dict(network.items())["first"].factors
    assert factors.scale == 1.0 and factors.alpha == 4.0  # 2 / √4, and what a reader divides by the rank


def test_a_base_of_another_dtype_keeps_its_output_type(toy):
    network = stir(build_network(toy, settings()))
    toy.to(torch.bfloat16)
    with network.attached(toy.adaptable()):
        out = toy(X.to(torch.bfloat16))
    assert out.dtype == torch.bfloat16
    assert {p.dtype for p in network.parameters()} == {torch.float32}


def test_autocast_reaches_the_adapters(toy):
    network = stir(build_network(toy, settings()))
    with torch.autocast("cpu", torch.bfloat16):
        out = run(toy, network)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), run(toy, network), rtol=0.1, atol=0.1)


def test_a_quantized_base_is_adapted_without_its_weight(toy):
    toy.first = Quantized(toy.first)
    plain, network = toy(X), build_network(toy, settings(targets="first"))
    assert torch.equal(run(toy, network), plain)
    assert not torch.equal(run(toy, stir(network)), plain)


def test_a_layer_smaller_than_the_rank_gets_its_full_rank_at_the_same_scale(toy, caplog):
    toy.wide = nn.Linear(32, 32)
    network = build_network(toy, settings(rank=16, alpha=8.0, targets="wide, first"))
    found = {name: (adapter.factors.rank, adapter.factors.scale) for name, adapter in network.items()}
    assert found == {"first": (12, 0.5), "wide": (16, 0.5)}
    assert "Rank 16 is above the full rank of 1 small layers" in caplog.text


def test_a_rank_above_every_layer_is_refused(toy):
    with pytest.raises(TrainError, match="rank: found 16, larger than every target layer; expected at most 12"):
        build_network(toy, settings(rank=16))


@pytest.mark.parametrize(
    "wrong",
    [
        {"adapter": "boft"},
        {"rank": 0},
        {"alpha": -1.0},
        {"adapter_dropout": 1.0},
        {"dora_axis": "x"},
        {"lokr_factor": -1},
    ],
)
def test_invalid_settings_are_refused_by_name(wrong):
    with pytest.raises(TrainError, match=next(iter(wrong))):
        TrainConfig(**wrong)
