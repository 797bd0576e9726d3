"""All adapters of a run: hooks, starts, and restoring them."""

import copy

import pytest
import torch

from streamcache.lora_train.adapters import build_network, lora_file

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
