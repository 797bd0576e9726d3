"""Adafactor at a fixed rate: as in other trainers, with factored moments, and exact after a resume."""

import math

import pytest
import torch

from streamcache.lora_train.optimizers.adafactor import Adafactor
from streamcache.lora_train.optimizers.optim import Rates, make_optimizer


def reference_step(weight, grad, kept, lr, decay, step) -> None:
    """The update of transformers' Adafactor with scale_parameter, relative_step and warmup_init off, in float64."""
    beta = 1 - math.pow(step, -0.8)
    square = grad**2 + 1e-30
    if grad.ndim > 1:
        kept["row"] = beta * kept.get("row", 0) + (1 - beta) * square.mean(-1)
        kept["col"] = beta * kept.get("col", 0) + (1 - beta) * square.mean(-2)
        row = (kept["row"] / kept["row"].mean(-1, keepdim=True)).rsqrt().unsqueeze(-1)
        update = row * kept["col"].unsqueeze(-2).rsqrt() * grad
    else:
        kept["all"] = beta * kept.get("all", 0) + (1 - beta) * square
        update = kept["all"].rsqrt() * grad
    update = update / update.square().mean().sqrt().clamp(min=1.0)
    weight.sub_(weight, alpha=decay * lr).sub_(lr * update)


@pytest.mark.parametrize("shape", [(8, 3), (5,), (4, 3, 3, 3), (1, 6)])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_it_equals_the_fixed_rate_update_of_other_trainers(shape, decay: float) -> None:
    random = torch.Generator().manual_seed(1)
    weight = torch.nn.Parameter(torch.randn(shape, generator=random))
    optimizer = make_optimizer("Adafactor", [{"params": [weight]}], Rates(1e-2, weight_decay=decay))
    expected, kept = weight.detach().double().clone(), {}
    for step in range(1, 50):
        weight.grad = torch.randn(shape, generator=random)
        reference_step(expected, weight.grad.double(), kept, 1e-2, decay, step)
        optimizer.step()
    torch.testing.assert_close(weight.detach().double(), expected, rtol=1e-5, atol=1e-6)


def test_it_learns_at_the_rates_of_loras() -> None:
    """A weight that starts at zero, as a LoRA's up does, moves as fast as with AdamW."""
    moved = {}
    for name in ("AdamW", "Adafactor"):
        random, weight = torch.Generator().manual_seed(1), torch.nn.Parameter(torch.zeros(16, 4))
        optimizer = make_optimizer(name, [{"params": [weight]}], Rates(1e-4))
        for _ in range(60):
            weight.grad = 1e-3 * (1 + torch.rand(weight.shape, generator=random))
            optimizer.step()
        moved[name] = float(weight.detach().abs().mean())
    assert moved["Adafactor"] == pytest.approx(moved["AdamW"], rel=0.2)


def test_the_second_moment_of_a_matrix_takes_one_row_and_one_column() -> None:
    weight = torch.nn.Parameter(torch.randn(300, 200))
    optimizer = Adafactor([weight], lr=1e-3)
    weight.grad = torch.randn(300, 200)
    optimizer.step()
    assert sum(value.numel() for value in optimizer.state[weight].values()) == 300 + 200 + 1


def test_a_gradient_of_zero_changes_nothing() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = Adafactor([weight], lr=1e-3)
    for _ in range(3):
        weight.grad = torch.zeros(4, 4)
        optimizer.step()
    assert torch.equal(weight.detach(), torch.ones(4, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_its_state_is_float32_and_resumes_bit_for_bit(dtype: torch.dtype) -> None:
    def run(steps: int, weight, optimizer, random) -> None:
        for _ in range(steps):
            weight.grad = torch.randn(6, 5, generator=random).to(dtype)
            optimizer.step()

    whole = torch.nn.Parameter(torch.ones(6, 5, dtype=dtype))
    first = Adafactor([whole], lr=1e-2, weight_decay=0.1)
    random = torch.Generator().manual_seed(2)
    run(5, whole, first, random)
    cut = torch.nn.Parameter(whole.detach().clone())
    second = Adafactor([cut], lr=1e-2, weight_decay=0.1)
    second.load_state_dict(first.state_dict())
    again = torch.Generator()
    again.set_state(random.get_state())
    run(5, whole, first, random)
    run(5, cut, second, again)
    assert torch.equal(whole, cut)
    assert {value.dtype for value in second.state[cut].values()} == {torch.float32}


def test_a_state_of_torchs_adafactor_goes_on() -> None:
    """Earlier versions trained with torch's own."""
    weight = torch.nn.Parameter(torch.ones(6, 5))
    former = torch.optim.Adafactor([weight], lr=1e-3)
    weight.grad = torch.randn(6, 5)
    former.step()
    optimizer = Adafactor([weight], lr=1e-3)
    optimizer.load_state_dict(former.state_dict())
    weight.grad = torch.randn(6, 5)
    optimizer.step()
    assert weight.isfinite().all() and float(optimizer.state[weight]["step"]) == 2
