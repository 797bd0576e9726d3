"""Attention kernels as a choice: the chosen one computes, gradients are the same, and a missing one is refused."""

import pytest
import torch
from torch.nn import functional as F

from streamcache.errors import TrainError
from streamcache.lora_train.compute import attention_kernel
from streamcache.tests.lora_train.short_runs import assert_same_state, last_state, losses
from streamcache.tests.lora_train.test_memory import small_denoiser, small_set
from streamcache.tests.support.small_parts import run_training

KERNELS = {"math": "UnsafeViewBackward0", "flash": "ScaledDotProductFlashAttentionForCpuBackward0"}


def attend(query: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, query, query)


def test_j3_the_chosen_kernel_computes_with_the_same_gradients():
    query, found = torch.randn(2, 2, 12, 8, generator=torch.Generator().manual_seed(1)), {}
    for name, operation in KERNELS.items():
        given = query.clone().requires_grad_()
        with attention_kernel(name):
            out = attend(given)
        assert out.grad_fn.name() == operation
        (found[name],) = torch.autograd.grad(out.square().sum(), given)
    torch.testing.assert_close(found["math"], found["flash"])


def test_a_kernel_that_cannot_compute_a_call_says_so_and_others_come_back():
    with (
        pytest.raises(TrainError, match="attention = cudnn: .* choose another"),
        attention_kernel("cudnn"),
    ):
        attend(torch.randn(1, 1, 4, 8))
    assert attend(torch.randn(1, 1, 4, 8, requires_grad=True)).grad_fn.name() == KERNELS["flash"]


def test_other_errors_inside_are_left_as_they_are():
    with pytest.raises(RuntimeError, match="shapes|size|expected"), attention_kernel("math"):
        torch.ones(2, 3) @ torch.ones(2, 3)


def test_a_kernel_that_the_device_lacks_is_refused_before_anything_is_written(tmp_path):
    dataset = small_set(tmp_path / "set")
    with pytest.raises(TrainError, match="attention = efficient: not available on cpu in float32; expected"):
        run_training(tmp_path / "run", dataset, small_denoiser(), steps=2, attention="efficient")
    assert not list((tmp_path / "run").rglob("metrics.jsonl"))


def test_steps_and_validation_compute_with_the_chosen_kernel(tmp_path, monkeypatch):
    denoiser, used = small_denoiser(), set()
    predict = denoiser.predict

    def watched(*args):
        trains = torch.is_grad_enabled()
        with torch.enable_grad():
            used.add((trains, attend(torch.randn(1, 1, 4, 8, requires_grad=True)).grad_fn.name()))
        return predict(*args)

    monkeypatch.setattr(denoiser, "predict", watched)
    settings = {"steps": 2, "validation_share": 0.3, "validation_every": 1, "attention": "math"}
    run_training(tmp_path / "run", small_set(tmp_path / "set"), denoiser, **settings)
    assert used == {(True, KERNELS["math"]), (False, KERNELS["math"])}


@pytest.mark.parametrize("more", [{}, {"checkpointing": True}], ids=str)
def test_j3_a_run_with_a_chosen_kernel_resumes_bit_for_bit_and_only_with_it(tmp_path, more):
    dataset = small_set(tmp_path / "set")

    def run(name, steps, attention="math", mode="new"):
        run_training(tmp_path / name, dataset, small_denoiser(), mode=mode, steps=steps, attention=attention, **more)

    run("whole", 4)
    run("parts", 2)
    with pytest.raises(TrainError, match="attention: was 'math', is 'flash'"):
        run("parts", 4, "flash", "resume")
    run("parts", 4, mode="resume")
    assert_same_state(last_state(tmp_path / "parts"), last_state(tmp_path / "whole"))
    run("other", 4, "flash")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    torch.testing.assert_close(losses(tmp_path / "other"), losses(tmp_path / "whole"), rtol=1e-4, atol=1e-6)
