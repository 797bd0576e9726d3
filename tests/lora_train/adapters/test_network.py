"""All adapters of a run: hooks, starts, and restoring them."""

import copy

import pytest
import torch

from streamcache.errors import TrainError
from streamcache.lora_train.adapters import build_network, load_fixed, lora_file
from streamcache.lora_train.config import TrainConfig

from .toy import AXES, KINDS, X, run, settings, stir


def test_building_leaves_the_global_generator_alone(toy):
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    build_network(toy, settings())
    assert torch.equal(torch.rand(3), expected)


def test_one_more_target_changes_no_other_start(toy):
    few, all_ = build_network(toy, settings(targets="first")), build_network(toy, settings())
    assert torch.equal(few.tensors()["first.lora_down.weight"], all_.tensors()["first.lora_down.weight"])


def test_the_base_model_is_exactly_as_it_was(toy):
    before = copy.deepcopy(toy.state_dict())
    keys = {name: set(vars(module)) for name, module in toy.named_modules()}
    run(toy, stir(build_network(toy, settings(dora=True))))
    assert all(torch.equal(before[key], value) for key, value in toy.state_dict().items())
    assert keys == {name: set(vars(module)) for name, module in toy.named_modules()}
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in toy.modules())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_no_hook_stays_after_an_error_or_an_interrupt(toy, error):
    with pytest.raises(error), build_network(toy, settings()).attached(toy.adaptable()):
        raise error
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in toy.modules())


def test_no_hook_stays_when_a_module_is_missing(toy):
    network = build_network(toy, settings())
    with pytest.raises(KeyError), network.attached({"image": toy.image}):
        pass
    assert not toy.image._forward_hooks


def test_dropout_follows_from_seed_and_step_and_stops_in_eval(toy):
    network = stir(build_network(toy, settings(dropout=0.5)))

    def at(step):
        network.begin(step)
        return run(toy, network)

    assert torch.equal(at(1), at(1)) and not torch.equal(at(1), at(2))
    network.eval()
    assert torch.equal(at(1), at(2))


@KINDS
@AXES
def test_a_network_is_restored_bit_for_bit_from_its_tensors(toy, kind, axis):
    network = stir(build_network(toy, settings(kind=kind, dora=True, dora_axis=axis, alpha=1.7)))
    again = build_network(toy, settings(kind=kind), lora_file.split_lora(network.tensors()))
    assert torch.equal(run(toy, again), run(toy, network))
    assert all(torch.equal(value, again.tensors()[key]) for key, value in network.tensors().items())


def test_two_networks_add_up_and_leave_separately(toy):
    first, second = (stir(build_network(toy, settings(targets="second", seed=s)), s) for s in (1, 2))
    with first.attached(toy.adaptable()):
        alone = toy(X)
        with second.attached(toy.adaptable()):
            both = toy(X)
        assert torch.equal(toy(X), alone)
    assert not torch.equal(both, alone)


def test_j6_ranks_and_alphas_by_pattern_are_for_the_modules_that_match(toy):
    """A module without an alpha of its own keeps that of the settings; `convolutions` are kernels above 1×1."""
    changes = {"group_ranks": {"convolutions": 2, "image": 1}, "group_alphas": {"first": 6.0}}
    tensors = build_network(toy, settings(rank=4, alpha=2.0, **changes)).tensors()
    ranks = {name: len(tensors[f"{name}.lora_down.weight"]) for name in toy.adaptable()}
    alphas = {name: float(tensors[f"{name}.alpha"]) for name in toy.adaptable()}
    convolutions = {"image": 1, "wrapped": 2, "grouped": 2, "line": 2, "volume": 2}
    assert ranks == {**convolutions, "first": 4, "second": 4}
    assert alphas == {**dict.fromkeys(ranks, 2.0), "first": 6.0}
    own = build_network(toy, settings(rank=4, alpha=None, **changes)).tensors()
    assert float(own["wrapped.alpha"]) == 2 and float(own["second.alpha"]) == 4


def test_j6_a_network_with_ranks_by_pattern_is_restored_and_continued(toy):
    made = settings(rank=4, group_ranks={"convolutions": 2})
    network = stir(build_network(toy, made))
    file = lora_file.split_lora(network.tensors())
    for resumes in (True, False):
        again = build_network(toy, made, file, resumes=resumes)
        assert all(torch.equal(value, again.tensors()[name]) for name, value in network.tensors().items())


def test_j6_a_pattern_without_a_module_is_refused(toy):
    with pytest.raises(TrainError, match='group_ranks: "nothing" matches none of 7 modules'):
        build_network(toy, settings(group_ranks={"nothing": 2}))
    with pytest.raises(TrainError, match="group_ranks.image = 2.5: expected a whole number"):
        TrainConfig(group_ranks={"image": 2.5})


def test_j6_lora_plus_multiplies_the_rate_of_up_and_of_nothing_else(toy):
    network = build_network(toy, settings(dora=True, group_rates={"image": 0.5}))
    plain, plus = network.parameter_groups(0.1), network.parameter_groups(0.1, lora_plus=16)
    rates = [{name: group["lr"] for group in groups for name in group["names"]} for groups in (plain, plus)]
    assert list(rates[0]) != [] and set(rates[0]) == set(rates[1])
    assert all(rates[1][name] == rate * (16 if name.endswith("factors.up") else 1) for name, rate in rates[0].items())
    assert plus[0]["lr"] == 0.1  # the rate that is reported
    for settings_ in ({"adapter": "loha"}, {"optimizer": "Prodigy"}):
        with pytest.raises(TrainError, match="lora_plus = 4"):
            TrainConfig(lora_plus=4.0, **settings_)


def test_j6_norms_are_limited_as_in_kohyas_scripts(toy):
    # networks/lora.py, apply_max_norm_regularization
    network = stir(build_network(toy, settings()))
    before = {name: (a.factors.up.clone(), a.factors.down.clone(), a.factors.weight()) for name, a in network.items()}
    most = sorted(weight.norm().item() for _, _, weight in before.values())[3]
    network.limit_norms(most)
    for name, adapter in network.items():
        up, down, weight = before[name]
        norm = weight.norm().clamp(min=most / 2)
        ratio = (norm.clamp(max=most) / norm) ** 0.5
        torch.testing.assert_close(adapter.factors.up, up * ratio)
        torch.testing.assert_close(adapter.factors.down, down * ratio)
        if weight.norm() <= most:
            assert torch.equal(adapter.factors.up, up)
        assert adapter.factors.weight().norm() <= most * 1.0001


def test_j5_a_network_that_is_off_leaves_the_model_as_it_was_and_counts_no_calls(toy):
    network, bare = stir(build_network(toy, settings(dora=True))), toy(X)
    with network.attached(toy.adaptable()):
        changed = toy(X)
        network.forget_calls()
        with network.off():
            assert torch.equal(toy(X), bare)
        assert set(network.uncalled()) == set(toy.adaptable())
        assert torch.equal(toy(X), changed) and not torch.equal(changed, bare)


def test_j4_an_adapter_that_applies_first_does_so_whenever_it_is_attached(toy):
    """The sums are in the same order, so they are the same bit for bit."""
    fixed = load_fixed(toy, lora_file.split_lora(stir(build_network(toy, settings()), 9).tensors()))
    trained = stir(build_network(toy, settings(kind="oft", alpha=None, rank=4)))
    with fixed.attached(toy.adaptable(), first=True), trained.attached(toy.adaptable()):
        before = toy(X)
    with trained.attached(toy.adaptable()), fixed.attached(toy.adaptable(), first=True):
        assert torch.equal(toy(X), before)
    assert not any(parameter.requires_grad for parameter in fixed.parameters())
