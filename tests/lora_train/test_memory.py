"""Precision, gradient checkpointing, and a module's forward replaced for a while."""

import pytest
import torch
from torch import nn

from streamcache.lora_train.memory import checkpointed, choose_precision, replaced_forward

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
