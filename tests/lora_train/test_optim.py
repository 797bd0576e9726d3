"""Optimizers are made by name; a missing package is named with what installs it."""

import pytest
import torch

from streamcache.lora_train.errors import TrainError
from streamcache.lora_train.optim import OPTIMIZERS, Rates, available, find_class, make_optimizer, set_mode, set_rate


@pytest.mark.parametrize("name", available())
def test_every_installed_optimizer_lowers_a_loss(name: str) -> None:
    weight = torch.nn.Parameter(torch.full((4, 4), 3.0))
    optimizer = make_optimizer(name, [{"params": [weight]}], Rates(0.05))
    for _ in range(30):
        optimizer.zero_grad()
        (weight**2).mean().backward()
        optimizer.step()
    set_mode(optimizer, training=False)
    assert (weight**2).mean() < 9


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - set(available())))
def test_a_missing_package_is_named_with_the_command_that_installs_it(name: str) -> None:
    with pytest.raises(
        TrainError, match=f'optimizer = "{name}": needs .* run "pip install .*", or choose one of AdamW'
    ):
        find_class(name)


def test_torch_optimizers_are_always_there() -> None:
    assert {"AdamW", "Adam", "Adafactor", "SGD"} <= set(available())


def test_groups_keep_their_own_rates_under_a_schedule() -> None:
    slow, fast = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    optimizer = make_optimizer("AdamW", [{"params": [slow]}, {"params": [fast], "lr": 1.0}], Rates(0.1))
    assert set_rate(optimizer, 0.5) == pytest.approx(0.05)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.5])
