"""Compiled blocks: the same gradients, one graph per block, and training that goes on if compiling fails."""

import shutil
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters

from streamcache.errors import TrainError
from streamcache.lora_train import loop
from streamcache.lora_train.adapters import AdapterSettings, build_network, draw_numbers
from streamcache.lora_train.memory import checkpointed, compiled
from streamcache.lora_train.run.folder import read_run_json
from streamcache.reference.denoiser import ReferenceDenoiser
from streamcache.reference.model import ModelSize, ReferenceModel
from streamcache.tests.lora_train.short_runs import assert_same_state, last_state, losses
from streamcache.tests.lora_train.test_memory import small_set
from streamcache.tests.support.small_parts import run_training

BACKEND = "aot_eager"  # the same graphs, computed by torch's own kernels: the default one compiles for minutes


@pytest.fixture(autouse=True)
def forgotten():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def small_denoiser(depth=1):
    return ReferenceDenoiser(ReferenceModel(ModelSize(width=8, depth=depth, heads=1), seed=3))


def broken(*_, **__):
    raise RuntimeError("no compiler on this machine")


def step(denoiser, network, side, number=0):
    height, width = side if isinstance(side, tuple) else (side, side)
    made = torch.Generator().manual_seed(height)
    network.begin(number, draw_numbers(made))
    x, t = torch.randn(2, denoiser.model.size.channels, height, width, generator=made), torch.rand(2, generator=made)
    text, pooled = torch.randn(2, 7, 64, generator=made), torch.randn(2, 64, generator=made)
    denoiser.model(x, t, text, pooled).square().mean().backward()


def gradients(denoiser, context, sides=(4,), targets="attention", **changes) -> list[torch.Tensor]:
    network = build_network(denoiser, AdapterSettings(rank=2, targets=targets, **changes)).train()
    with network.attached(denoiser.adaptable()), context:
        for side in sides:
            step(denoiser, network, side)
    return [parameter.grad for parameter in network.parameters()]


def unexpected(words):
    raise AssertionError(words)


def test_j3_compiled_blocks_give_the_same_gradients_in_one_graph_for_all_sizes():
    """With adapter dropout, whose masks are part of the graph.

    A second graph is no failure: on some machines torch takes a relation of the first sizes for one of all.
    """
    sides = (4, (6, 4), (4, 8), 6, (8, 6), (10, 4), (4, 12))  # first a square, whose sides are equal by chance
    denoiser = small_denoiser()
    plain = gradients(denoiser, nullcontext(), sides=sides, dropout=0.1)
    again = gradients(denoiser, compiled(denoiser.blocks(), unexpected, BACKEND), sides=sides, dropout=0.1)
    torch.testing.assert_close(again, plain)
    assert counters["frames"]["ok"] <= 2 and not counters["graph_break"]
    assert not any("forward" in vars(block) for block in denoiser.blocks())


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"kind": "lokr"}, {"kind": "loha"}, {"kind": "oft"}, {"dora": True}], ids=str)
def test_j3_compiled_blocks_give_the_same_gradients_with_every_adapter(changes):
    denoiser = small_denoiser()
    plain = gradients(denoiser, nullcontext(), targets="all", **changes)
    again = gradients(denoiser, compiled(denoiser.blocks(), unexpected, BACKEND), targets="all", **changes)
    torch.testing.assert_close(again, plain)
    assert counters["frames"]["ok"]


@pytest.mark.slow
def test_j3_a_compiled_block_can_be_checkpointed():
    denoiser = small_denoiser()
    plain = gradients(denoiser, nullcontext())
    with compiled(denoiser.blocks(), unexpected, BACKEND):
        again = gradients(denoiser, checkpointed(denoiser.blocks()))
    torch.testing.assert_close(again, plain)
    assert counters["frames"]["ok"]


def test_a_block_that_cannot_be_compiled_for_any_size_is_compiled_for_each():
    """As with torch 2.13's own compiler, if a block returns a view."""
    denoiser, given = small_denoiser(), []

    def one_size_only(graph, inputs):
        sizes = [value for value in inputs if isinstance(value, torch.SymInt)]
        given.append(len(sizes))
        return broken() if sizes else aot_autograd(fw_compiler=lambda made, _: made)(graph, inputs)

    plain = gradients(denoiser, nullcontext(), sides=(4, 6, 4))
    again = gradients(denoiser, compiled(denoiser.blocks(), unexpected, one_size_only), sides=(4, 6, 4))
    torch.testing.assert_close(again, plain)
    assert given[0] and given[1:] == [0, 0], given


@pytest.mark.slow
def test_j3_the_default_compiler_gives_the_same_gradients():
    """It needs a compiler for C++ on a CPU; without one, that is said."""
    denoiser, said = small_denoiser(), []
    plain = gradients(denoiser, nullcontext(), sides=(4, 6))
    again = gradients(denoiser, compiled(denoiser.blocks(), said.append), sides=(4, 6))
    torch.testing.assert_close(again, plain)
    assert bool(said) is not any(map(shutil.which, ("c++", "g++", "clang++", "cl"))), said
    assert counters["frames"]["ok"] or said


def test_a_compile_that_fails_goes_on_without_and_says_so_once():
    denoiser, said = small_denoiser(depth=3), []
    plain = gradients(denoiser, nullcontext(), sides=(4, 6))
    again = gradients(denoiser, compiled(denoiser.blocks(), said.append, broken), sides=(4, 6))
    assert all(map(torch.equal, again, plain))
    assert said == ["compile = true: torch.compile failed (no compiler on this machine); training goes on without it"]


@pytest.mark.slow
def test_blocks_that_were_compiled_stay_so_if_a_later_one_fails():
    """With checkpointing, the second pass through a block must be the same as the first."""
    denoiser, said, calls = small_denoiser(depth=2), [], []

    def second_is_broken(graph, inputs):
        calls.append(graph)
        return aot_autograd(fw_compiler=lambda made, _: made)(graph, inputs) if len(calls) == 1 else broken()

    plain = gradients(denoiser, nullcontext())
    with compiled(denoiser.blocks(), said.append, second_is_broken):
        again = gradients(denoiser, checkpointed(denoiser.blocks()))
    torch.testing.assert_close(again, plain)
    assert len(calls) == 3 and len(said) == 1  # the second block: for any size, then for this one


def test_a_backward_pass_that_cannot_be_compiled_is_noticed_before_it_begins():
    backend = aot_autograd(fw_compiler=lambda graph, _: graph, bw_compiler=broken)
    denoiser, said = small_denoiser(), []
    plain = gradients(denoiser, nullcontext())
    assert all(map(torch.equal, gradients(denoiser, compiled(denoiser.blocks(), said.append, backend)), plain))
    assert len(said) == 1 and "no compiler on this machine" in said[0]


def test_a_torch_that_cannot_compile_at_all_trains(monkeypatch):
    monkeypatch.setattr(torch, "compile", broken)
    denoiser, said = small_denoiser(), []
    plain = gradients(denoiser, nullcontext())
    assert all(map(torch.equal, gradients(denoiser, compiled(denoiser.blocks(), said.append)), plain))
    assert len(said) == 1


def test_an_error_of_the_model_itself_is_not_one_of_compiling():
    denoiser = small_denoiser()
    with compiled(denoiser.blocks(), unexpected, BACKEND), pytest.raises(RuntimeError, match="shapes"):
        denoiser.blocks()[0](torch.randn(1, 16, 5), *[torch.randn(1, 3)] * 3, (4, 4))


def test_the_run_remembers_that_compiling_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "compiled", partial(compiled, backend=broken))
    dataset = small_set(tmp_path / "set")
    run_training(tmp_path / "plain", dataset, small_denoiser(), steps=2)
    run_training(tmp_path / "failed", dataset, small_denoiser(), steps=2, compile=True)
    assert losses(tmp_path / "failed") == losses(tmp_path / "plain")
    (described,) = (tmp_path / "failed").rglob("run.json")
    assert "torch.compile failed" in read_run_json(described.parent)["notes"]


@pytest.mark.slow
def test_j3_a_compiled_run_resumes_bit_for_bit_and_only_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "compiled", partial(compiled, backend=BACKEND))
    dataset = small_set(tmp_path / "set")
    run_training(tmp_path / "whole", dataset, small_denoiser(), steps=6, compile=True)
    assert counters["frames"]["ok"]
    run_training(tmp_path / "parts", dataset, small_denoiser(), steps=2, compile=True)
    with pytest.raises(TrainError, match="compile: was True, is False"):
        run_training(tmp_path / "parts", dataset, small_denoiser(), steps=6, mode="resume")
    run_training(tmp_path / "parts", dataset, small_denoiser(), steps=6, compile=True, mode="resume")
    assert_same_state(last_state(tmp_path / "parts"), last_state(tmp_path / "whole"))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
