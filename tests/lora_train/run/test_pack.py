"""Packing: nested state survives JSON and safetensors, and nothing that would need pickle gets in."""

import json
import math

import pytest
import torch

from streamcache.lora_train.run.pack import pack, unpack


def test_everything_that_optimizers_keep_survives() -> None:
    state = {
        "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(2, 3)}, 1: {"mode": None, "done": True}},
        "param_groups": [{"lr": 0.1 + 0.2, "betas": (0.9, 0.999), "params": [0, 1], "name": "a", "k": -7}],
        "bounds": [math.inf, -math.inf],
        "empty": {},
    }
    tree, tensors = pack(state)
    back = unpack(json.loads(json.dumps(tree, allow_nan=False)), tensors)
    assert list(back["state"]) == [0, 1] and torch.equal(back["state"][0]["exp_avg"], state["state"][0]["exp_avg"])
    assert back["param_groups"] == state["param_groups"] and isinstance(back["param_groups"][0]["betas"], tuple)
    assert back["bounds"] == state["bounds"] and back["empty"] == {}
    assert set(tensors) == {"state.0.step", "state.0.exp_avg"}


def test_nan_survives_and_strange_objects_are_refused_with_their_place() -> None:
    tree, _ = pack([math.nan])
    assert math.isnan(unpack(json.loads(json.dumps(tree, allow_nan=False)), {})[0])
    with pytest.raises(TypeError, match="a.1: object cannot be kept"):
        pack({"a": [1, object()]})


def test_a_packed_tensor_is_a_copy() -> None:
    live = torch.ones(2)
    _, tensors = pack({"w": live})
    live += 1
    assert tensors["w"].tolist() == [1, 1]
