"""Models on demand: E1–E4 and E6."""

import copy
import gc
import threading
import time
import weakref
from types import SimpleNamespace

import psutil
import pytest
import torch

from streamcache.dataset_cache.encode.on_demand import OnDemand
from streamcache.errors import CacheError


class Net(torch.nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(width, width)
        self.drop = torch.nn.Dropout(0.5)
        torch.nn.init.eye_(self.layer.weight)

    def forward(self, x):
        return self.drop(self.layer(x))

    def twice(self, x):
        return self(self(x))


class Wrapper:
    """As the host's VAE: an object that holds the network."""

    def __init__(self) -> None:
        self.first_stage_model = Net()

    def encode(self, x):
        return self.first_stage_model(x)


def stand_in(make=Net) -> OnDemand:
    return OnDemand(make, "content of the weights", name="tiny")


def test_e1_it_loads_when_used_and_is_freed_after():
    model = stand_in()
    assert model.identity == "content of the weights"
    assert not model.loaded and model.loads == 0
    x = torch.ones(2, 4)
    assert model.twice(x).shape == (2, 4) and model(x).shape == (2, 4)
    assert not model.loaded and model.loads > 0


def test_e1_the_stand_in_stays_the_same_object_and_copies_share_the_model():
    model = stand_in()
    for twin in (copy.copy(model), copy.deepcopy(model)):
        with model.lease() as one, twin.lease() as two:
            assert one is two
    assert model.loads == 2
    assert {model: "usable as a key"}[model]


def test_e2_memory_returns_to_the_baseline_after_release():
    def resident() -> int:
        gc.collect()
        return psutil.Process().memory_info().rss

    model = OnDemand(lambda: Net(4096), "id")
    with model.lease():
        pass
    before = resident()
    for _ in range(3):
        with model.lease() as net:
            net(torch.ones(1, 4096))
            assert resident() - before > 40 << 20
            del net
    assert resident() - before < 12 << 20


@pytest.mark.parametrize("make", [Net, Wrapper])
def test_e3_it_is_always_frozen_and_in_eval_mode(make):
    model = stand_in(make)
    for refuse in (model.train, lambda: model.train(True), model.requires_grad_):
        with pytest.raises(CacheError, match="is frozen; load it with the usual loader"):
            refuse()
    assert model.eval() is model and model.train(False) is model and model.training is False
    with model.lease() as loaded:
        net = loaded if make is Net else loaded.first_stage_model
        assert not net.training and not net.drop.training
        assert not any(p.requires_grad for p in net.parameters())
        with pytest.raises(CacheError, match="frozen"):
            net.train()
        net.drop.train()  # behind our back
        with model.lease():
            pass
        assert not net.drop.training and net.eval() is net


def test_e4_four_threads_cause_one_load():
    def slow() -> Net:
        time.sleep(0.05)
        return Net()

    model = stand_in(slow)
    gate = threading.Barrier(4)
    seen = []

    def use() -> None:
        gate.wait()
        with model.lease() as net:
            seen.append(net)
            gate.wait()

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.loads == 1 and len(set(map(id, seen))) == 1 and not model.loaded


def test_e4_a_thread_that_waits_for_the_model_keeps_it_loaded():
    loading, everyone_waits = threading.Event(), threading.Event()

    def load() -> Net:
        loading.set()
        assert everyone_waits.wait(60)
        return Net()

    model = stand_in(load)
    seen = []

    def use() -> None:
        with model.lease() as net:  # left at once: only the waiting threads can keep the model
            seen.append(id(net))

    threads = [threading.Thread(target=use, daemon=True) for _ in range(4)]
    threads[0].start()
    assert loading.wait(60)
    for thread in threads[1:]:
        thread.start()
    limit = time.monotonic() + 60
    while model.users < 4 and time.monotonic() < limit:
        time.sleep(0.001)
    assert model.users == 4
    everyone_waits.set()
    for thread in threads:
        thread.join(60)
    assert len(seen) == 4 and model.loads == 1 and not model.loaded and model.users == 0


def test_a_failed_load_is_tried_again_by_the_thread_that_waited():
    loading, both_wait = threading.Event(), threading.Event()
    outcomes = iter([RuntimeError("no such file"), Net()])

    def load() -> Net:
        loading.set()
        assert both_wait.wait(60)
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    model = stand_in(load)
    results: list[str] = []

    def use() -> None:
        try:
            with model.lease():
                results.append("loaded")
        except RuntimeError as error:
            results.append(str(error))

    threads = [threading.Thread(target=use, daemon=True) for _ in range(2)]
    threads[0].start()
    assert loading.wait(60)
    threads[1].start()
    limit = time.monotonic() + 60
    while model.users < 2 and time.monotonic() < limit:
        time.sleep(0.001)
    both_wait.set()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == ["loaded", "no such file"] and model.users == 0 and not model.loaded


def test_e6_a_phase_loads_once_however_many_prompts_it_has():
    model = stand_in()
    with model.lease():
        for _ in range(10):
            model(torch.ones(4))
    assert model.identity and model.loads == 1 and not model.loaded


def test_a_failing_load_leaves_nothing_behind():
    outcomes = iter([RuntimeError("no such file"), Net()])

    def load() -> Net:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    model = stand_in(load)
    with pytest.raises(RuntimeError, match="no such file"):
        model(torch.ones(1, 4))
    assert not model.loaded
    assert model(torch.ones(1, 4)).shape == (1, 4) and not model.loaded


def test_an_error_inside_a_lease_frees_the_model():
    model = stand_in()
    with pytest.raises(KeyboardInterrupt), model.lease():
        raise KeyboardInterrupt
    assert not model.loaded


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError):
        _ = stand_in().nonsense


def test_e2_a_model_with_reference_cycles_is_freed_after_release():
    alive: list[weakref.ref] = []

    def load() -> SimpleNamespace:
        network = torch.nn.Linear(4, 4)
        object.__setattr__(network, "itself", network)  # as the host's text encoders do
        alive.append(weakref.ref(network))
        return SimpleNamespace(network=network)

    model = OnDemand(load, "identity")
    with model.lease():
        assert alive[0]() is not None
    assert alive[0]() is None
