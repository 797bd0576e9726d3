"""Which modules are adapted, and at which rate."""

import pytest

from streamcache.errors import TrainError
from streamcache.lora_train.adapters import build_network, targets_without
from streamcache.lora_train.config import TrainConfig

from .toy import settings


def test_targets_without_a_match_list_the_available_modules(toy):
    with pytest.raises(TrainError, match='"attn.*" matches none of 7 modules.*Presets: attention, all.*first, grouped'):
        build_network(toy, settings(targets="attn.*"))


def test_a_preset_a_pattern_and_a_rate_select_their_modules(toy):
    network = build_network(toy, settings(targets="attention, *ed, !grouped", group_rates={"*ed": 1e-5}))
    assert [name for name, _ in network.items()] == ["wrapped", "first"]
    rates = [(group["lr"], len(group["params"])) for group in network.parameter_groups(1e-4)]
    assert sorted(rates) == [(1e-5, 2), (1e-4, 2)]


def test_a_rate_of_zero_trains_nothing_there(toy):
    network = build_network(toy, settings(targets="first, second", group_rates={"all": 1e-3, "first": 0}))
    assert [name for name, _ in network.items()] == ["second"]
    with pytest.raises(TrainError, match="every target has the rate 0"):
        build_network(toy, settings(group_rates={"all": 0}))


def test_an_invalid_rate_is_refused():
    with pytest.raises(TrainError, match="group_rates.all = nan: expected a finite number"):
        TrainConfig(group_rates={"all": float("nan")})


def test_a_rate_for_a_pattern_without_modules_is_refused(toy):
    with pytest.raises(TrainError, match="group_rates: .*matches none"):
        build_network(toy, settings(group_rates={"blocks.*": 1.0}))


def test_excluding_every_module_is_refused(toy):
    with pytest.raises(TrainError, match="excludes every module"):
        build_network(toy, settings(targets="first, !*"))


def test_j8_layers_are_left_out_by_one_pattern_if_it_matches_no_other():
    experts = [f"blocks.{block}.experts.{number}.up" for block in (0, 1) for number in range(3)]
    assert targets_without(experts, [*experts, "blocks.0.shared.up"]) == "!blocks.*.experts.*.up"
    linears = [f"blocks.{block}.ffn.{number}" for block in (0, 1) for number in (0, 2)]
    assert targets_without(linears[1::2], linears) == "!blocks.*.ffn.2"
    assert targets_without(["blocks.1.up"], ["blocks.0.up", "blocks.1.up"]) == "!blocks.1.up"
