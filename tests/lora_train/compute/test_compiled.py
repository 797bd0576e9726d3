"""Compiled blocks: the same gradients, one graph per block, and training that goes on if compiling fails."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from streamcache.lora_train import loop
from streamcache.lora_train.adapters import AdapterSettings, build_network, draw_numbers
from streamcache.lora_train.memory import checkpointed, compiled
from streamcache.tests.lora_train.short_runs import assert_same_state, last_state, losses
from streamcache.tests.lora_train.test_memory import small_denoiser, small_set
from streamcache.tests.support.small_parts import run_training

BACKEND = "aot_eager"  # the same graphs, computed by torch's own kernels: the default one compiles for minutes


@pytest.fixture(autouse=True)
def forgotten():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def gradients(denoiser, context, **changes) -> list[torch.Tensor]:
    """Of two batches with different sizes."""
    network = build_network(denoiser, AdapterSettings(rank=2, targets="all", **changes)).train()
    with network.attached(denoiser.adaptable()), context:
        for number, side in enumerate((4, 6)):
            made = torch.Generator().manual_seed(number)
            network.begin(number, draw_numbers(made))
            x, t = (
                torch.randn(2, denoiser.model.size.channels, side, side, generator=made),
                torch.rand(2, generator=made),
            )
            text, pooled = torch.randn(2, 7, 64, generator=made), torch.randn(2, 64, generator=made)
            denoiser.model(x, t, text, pooled).square().mean().backward()
    return [parameter.grad for parameter in network.parameters()]


@pytest.mark.parametrize("changes", [{"dropout": 0.1}, {"kind": "lokr"}, {"dora": True}], ids=str)
def test_j3_compiled_blocks_give_the_same_gradients_in_one_graph_each(changes):
    denoiser = small_denoiser()
    plain = gradients(denoiser, nullcontext(), **changes)
    again = gradients(denoiser, compiled(denoiser.blocks(), BACKEND), **changes)
    torch.testing.assert_close(again, plain)
    assert counters["frames"]["ok"] >= len(denoiser.blocks())
    assert not counters["graph_break"] or changes.get("kind") == "lokr"  # it computes its own gradient
    assert not any("forward" in vars(block) for block in denoiser.blocks())


def test_j3_a_compiled_block_can_be_checkpointed():
    denoiser = small_denoiser()
    plain = gradients(denoiser, nullcontext())
    with compiled(denoiser.blocks(), BACKEND):
        again = gradients(denoiser, checkpointed(denoiser.blocks()))
    torch.testing.assert_close(again, plain)
    assert counters["frames"]["ok"]


def test_a_compile_that_fails_goes_on_without_and_says_so(caplog):
    def broken(*_):
        raise RuntimeError("no compiler on this machine")

    denoiser = small_denoiser()
    plain = gradients(denoiser, nullcontext())
    assert all(map(torch.equal, gradients(denoiser, compiled(denoiser.blocks(), broken)), plain))
    assert caplog.text.count("goes on without") == 1 and "no compiler on this machine" in caplog.text


def test_an_error_of_the_model_itself_is_not_one_of_compiling(caplog):
    denoiser = small_denoiser()
    with compiled(denoiser.blocks(), BACKEND), pytest.raises(RuntimeError, match="shapes"):
        gradients(denoiser, nullcontext())
        denoiser.blocks()[0](torch.randn(1, 16, 5), *[torch.randn(1, 3)] * 3, (4, 4))
    assert "goes on without" not in caplog.text


def test_j3_a_compiled_run_resumes_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "compiled", partial(compiled, backend=BACKEND))
    dataset = small_set(tmp_path / "set")
    run_training(tmp_path / "whole", dataset, small_denoiser(), steps=6, compile=True)
    assert counters["frames"]["ok"]
    run_training(tmp_path / "parts", dataset, small_denoiser(), steps=2, compile=True)
    torch._dynamo.reset()
    run_training(tmp_path / "parts", dataset, small_denoiser(), steps=6, compile=True, mode="resume")
    assert_same_state(last_state(tmp_path / "parts"), last_state(tmp_path / "whole"))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
