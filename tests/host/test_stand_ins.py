"""Stand-ins for models in the real ComfyUI: memory, threads, copies, and modifications by other nodes."""

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def outcome(run_in_host: Callable[[str], dict]) -> dict:
    return run_in_host("stand_ins")


def test_e2_memory_returns_after_release(outcome: dict):
    memory = outcome["memory"]
    assert memory["during"] > 100, "a text encoder of 236 MB was loaded"
    assert memory["after"] < 40
    assert not memory["loaded"]


def test_e3_a_stand_in_is_frozen_and_in_eval_mode(outcome: dict):
    assert outcome["frozen"] == {"refused": True, "training": [False], "requires grad": [False]}


def test_e4_four_threads_load_it_once(outcome: dict):
    assert outcome["threads"] == {"loads": 1, "difference": None}


def test_e1_copies_share_the_model_and_have_their_own_settings(outcome: dict):
    assert outcome["copies"] == {"loads": 1, "twins": [None, None], "skip differs": True, "identities": 2}


def test_patches_are_applied_again_after_a_reload(outcome: dict):
    assert outcome["patches"] == {
        "taken": 1,
        "freed": True,
        "loads": 2,
        "same after reload": None,
        "differs from plain": True,
    }


def test_a_modification_that_cannot_be_replayed_keeps_the_model_loaded(outcome: dict):
    assert outcome["hooks"] == {"loaded": True, "kept": True, "loads": 1}


def test_a_vae_with_its_own_patcher_keeps_one_model(outcome: dict):
    assert outcome["vae patcher"] == {"loaded": True, "same module": True, "difference": None, "loads": 1}


def test_a19_the_executors_inspection_between_nodes_loads_nothing(outcome: dict):
    assert outcome["between nodes"] == {"seen": [True, True, True, True], "loads": 0}


def test_a_call_longer_than_the_linger_time_keeps_its_model(outcome: dict):
    assert outcome["long call"] == {"same": True, "loads": 1, "freed": True}


def test_the_last_of_two_phases_frees_the_model(outcome: dict):
    assert outcome["two phases"] == {"same": True, "loads": 1, "freed": True}


def test_c1_the_hosts_nested_tensors_are_stored(outcome: dict):
    assert outcome["nested"] == {"type": "NestedTensor", "lazy": None, "real": None, "works": True}


def test_registered_folders_are_roots_of_caches(outcome: dict):
    assert outcome["roots"] == ["output/streamcache", "registered"]
