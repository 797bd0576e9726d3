"""Precision, gradient checkpointing, and a module's forward replaced for a while."""

from contextlib import ExitStack
from functools import partial

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.lora_train import PeakMemory, memory
from streamcache.lora_train.memory import activations_in_ram, checkpointed, choose_precision, replaced_forward
from streamcache.reference.denoiser import ReferenceDenoiser
from streamcache.reference.encoders import CHANNELS, encode_caption
from streamcache.reference.model import ModelSize, ReferenceModel

from ..support.small_parts import run_training
from .short_runs import assert_same_state, last_state, losses

CPU = torch.device("cpu")


def test_auto_is_fp32_without_a_gpu() -> None:
    assert choose_precision("auto", CPU).name == "fp32"


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_a_forward_pass_computes_in_the_chosen_dtype(name: str, dtype: torch.dtype) -> None:
    with choose_precision(name, CPU).autocast():
        assert torch.nn.functional.linear(torch.ones(2, 4), torch.ones(4, 4)).dtype is dtype


def test_only_fp16_scales_its_gradients() -> None:
    assert choose_precision("fp16", CPU).make_scaler().is_enabled()
    assert not choose_precision("bf16", CPU).make_scaler().is_enabled()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(8, 8), 0

    def forward(self, x, *, twice=False):
        self.calls += 1
        return torch.tanh(self.linear(x)) * (2 if twice else 1)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x, twice=True)
        return x


def gradients(stack, x):
    stack.zero_grad()
    stack(x).square().mean().backward()
    return [parameter.grad.clone() for parameter in stack.parameters()]


def saved_bytes(stack, x):
    """Bytes that the forward pass keeps for the backward pass, weights aside."""
    weights, kept = {p.data_ptr() for p in stack.parameters()}, []

    def pack(tensor):
        if tensor.data_ptr() not in weights:
            kept.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        stack(x)
    return sum(kept)


def test_gradients_are_bit_equal_to_those_without():
    stack, x = Stack(), torch.randn(3, 8)
    plain = gradients(stack, x)
    with checkpointed(stack.blocks):
        again = gradients(stack, x)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_defect_3_each_block_is_recomputed_by_itself_and_keeps_less():
    stack, x = Stack(), torch.randn(3, 8, requires_grad=True)
    plain = saved_bytes(stack, x)
    with checkpointed(stack.blocks):
        assert saved_bytes(stack, x) < plain / 1.5
        for block in stack.blocks:
            block.calls = 0
        gradients(stack, x)
    assert [block.calls for block in stack.blocks] == [2, 2, 2, 2]


def test_without_gradients_nothing_is_computed_twice():
    stack = Stack()
    with checkpointed(stack.blocks), torch.no_grad():
        stack(torch.randn(3, 8))
    assert [block.calls for block in stack.blocks] == [1, 1, 1, 1]


def test_every_forward_is_restored_after_an_error():
    stack = Stack()
    patched = lambda x, twice: x  # noqa: E731
    stack.blocks[1].forward = patched
    before = [set(vars(block)) for block in stack.blocks]
    with pytest.raises(RuntimeError), checkpointed(stack.blocks):
        raise RuntimeError
    assert [set(vars(block)) for block in stack.blocks] == before and stack.blocks[1].forward is patched


def test_a_block_that_is_listed_twice_is_wrapped_once():
    block = Block()
    with checkpointed([block, block]):
        block(torch.randn(2, 8)).sum().backward()
    assert block.calls == 2 and "forward" not in vars(block)


def test_a_forward_of_the_class_leaves_nothing_behind():
    layer = nn.Linear(2, 2)
    with replaced_forward(layer, lambda x: x + 1):
        assert torch.equal(layer(torch.zeros(2)), torch.ones(2))
    assert "forward" not in vars(layer)


def test_a_patched_forward_is_restored_after_an_error_even_below_other_patches():
    layer, patch = nn.Linear(2, 2), lambda x: x * 2
    layer.forward = patch
    with pytest.raises(RuntimeError), replaced_forward(layer, lambda x: x), replaced_forward(layer, lambda x: x):
        raise RuntimeError
    assert layer.forward is patch


@pytest.mark.parametrize("recomputed", [False, True])
def test_j3_activations_in_ram_give_bit_equal_gradients(recomputed):
    stack, x = Stack(), torch.randn(3, 8)
    plain = gradients(stack, x)
    with ExitStack() as settings:
        if recomputed:
            settings.enter_context(checkpointed(stack.blocks))
        settings.enter_context(activations_in_ram(stack.blocks, always=True))
        again = gradients(stack, x)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def small_denoiser():
    torch.manual_seed(3)
    return ReferenceDenoiser(ReferenceModel(ModelSize(width=16, depth=2, heads=2)))


def small_set(path):
    with CacheWriter(path) as writer:
        for number in range(8):
            latent = torch.randn(1, CHANNELS, 4, 4, generator=torch.Generator().manual_seed(number))
            writer.add({"samples": latent}, encode_caption("a red circle"), "a red circle", f"{number}.png")
    return open_cache(path)


@pytest.mark.parametrize("settings", [{}, {"checkpointing": True}, {"accumulate": 2, "ema_decay": 0.9}])
def test_j3_a_run_with_activations_in_ram_resumes_bit_for_bit(tmp_path, monkeypatch, settings):
    """Also if only a part of the run had them there, and equal to a run without."""
    copy, moved = memory._copy_to, []
    monkeypatch.setattr(memory, "activations_in_ram", partial(activations_in_ram, always=True))
    monkeypatch.setattr(memory, "_copy_to", lambda tensor, ram: moved.append(tensor.shape) or copy(tensor, ram))
    dataset = small_set(tmp_path / "set")

    def run(name, steps, in_ram, mode="new"):
        moved.clear()
        more = {"steps": steps, "activation_offload": in_ram, **settings}
        run_training(tmp_path / name, dataset, small_denoiser(), mode=mode, **more)
        assert bool(moved) is in_ram

    run("plain", 6, in_ram=False)
    run("whole", 6, in_ram=True)
    for name, still in (("parts", True), ("changed", False)):
        run(name, 2, in_ram=True)
        run(name, 6, in_ram=still, mode="resume")
    for name in ("whole", "parts", "changed"):
        assert_same_state(last_state(tmp_path / name), last_state(tmp_path / "plain"))
        assert losses(tmp_path / name) == losses(tmp_path / "plain")


@pytest.mark.parametrize("recomputed", [False, True])
def test_activations_in_ram_leave_the_device(recomputed):
    """On tensors without data, another device stands for RAM."""
    ram, width = torch.device("meta"), 1024
    with FakeTensorMode():
        stack = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(6)))
        kept = {}
        for moved in (False, True):
            peak = PeakMemory(torch.device("cpu"))
            peak.hold(stack.parameters())
            with ExitStack() as settings, peak:
                if recomputed:
                    settings.enter_context(checkpointed(stack))
                if moved:
                    settings.enter_context(activations_in_ram(stack, ram))
                before = peak.now
                out = stack(torch.empty(width, width, requires_grad=True))
                kept[moved] = peak.now - before
                out.sum().backward()
    assert kept[True] < kept[False] / 3


def test_on_the_cpu_nothing_is_copied():
    stack, x = Stack(), torch.randn(40000, 8, requires_grad=True)
    plain = PeakMemory(CPU)
    with plain:
        gradients(stack, x)
    moved = PeakMemory(CPU)
    with activations_in_ram(stack.blocks), moved:
        gradients(stack, x)
    assert moved.peak <= plain.peak * 1.01
