"""Optimizers are created by name; learning-rate schedules are pure functions of the step."""

import pytest
import torch

from streamcache.errors import TrainError
from streamcache.lora_train.optimizers.optim import (
    OPTIMIZERS,
    SCHEDULES,
    Curve,
    Rates,
    available,
    find_class,
    make_optimizer,
    set_mode,
    set_rate,
    was_fused,
)


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


@pytest.mark.parametrize("name", [name for name, kind in OPTIMIZERS.items() if kind.fuses])
def test_a_fused_optimizer_equals_the_plain_one_within_rounding(name: str) -> None:
    trained = []
    for fused in (False, True):
        random = torch.Generator().manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(shape, generator=random)) for shape in ((4, 6), (3,), (2, 2, 3, 3))]
        optimizer = make_optimizer(name, [{"params": weights}], Rates(1e-2), fused)
        assert was_fused(optimizer.state_dict()) is fused
        for _ in range(50):
            for weight in weights:
                weight.grad = torch.randn(weight.shape, generator=random)
            optimizer.step()
        trained.append(weights)
    for plain, other in zip(*trained, strict=True):
        torch.testing.assert_close(other, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - set(available())))
def test_a_missing_package_is_named_with_the_command_that_installs_it(name: str) -> None:
    with pytest.raises(
        TrainError, match=f'optimizer = "{name}": needs .* run "pip install .*", or choose one of AdamW'
    ):
        find_class(name)


def test_an_optimizer_with_a_single_rate_refuses_others_before_the_first_step() -> None:
    pytest.importorskip("prodigyopt")
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate} for rate in (1.0, 0.1)]
    with pytest.raises(
        TrainError, match='"Prodigy": estimates one learning rate.*group_rates or lora_plus gives 0.1, 1'
    ):
        make_optimizer("Prodigy", groups, Rates(1.0))
    make_optimizer("Prodigy", [groups[0], {**groups[1], "lr": 1.0}], Rates(1.0))


def test_a_schedule_free_optimizer_refuses_a_momentum_of_zero() -> None:
    pytest.importorskip("schedulefree")
    for name in ("AdamWScheduleFree", "SGDScheduleFree"):
        with pytest.raises(TrainError, match="needs beta1 above 0"):
            make_optimizer(name, [{"params": [torch.nn.Parameter(torch.ones(1))]}], Rates(1.0, beta1=0.0))


def test_torch_optimizers_are_always_there() -> None:
    assert {"AdamW", "Adam", "Adafactor", "SGD"} <= set(available())


def test_groups_keep_their_own_rates_under_a_schedule() -> None:
    slow, fast = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    optimizer = make_optimizer("AdamW", [{"params": [slow]}, {"params": [fast], "lr": 1.0}], Rates(0.1))
    assert set_rate(optimizer, 0.5) == pytest.approx(0.05)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.5])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_warms_up_peaks_at_one_and_stays_within_bounds(schedule: str) -> None:
    curve = Curve(schedule, steps=100, warmup=10, cycles=3, power=2.0, floor=0.1)
    factors = [curve.factor(step) for step in range(100)]
    assert factors[:10] == sorted(factors[:10]) and factors[:3] == pytest.approx([0, 0.1, 0.2])
    assert factors[10] == pytest.approx(1.0)
    assert all(0.1 <= factor <= 1.0 for factor in factors[10:])
    assert factors == [Curve(schedule, 100, 10, 3, 2.0, 0.1).factor(step) for step in range(100)]


def test_warmup_is_that_of_diffusers_and_of_kohyas_scripts() -> None:
    # diffusers.optimization: float(current_step) / float(max(1, num_warmup_steps)), then 1.0
    for warmup in (0, 1, 4):
        expected = [step / max(1, warmup) if step < warmup else 1.0 for step in range(8)]
        assert [Curve("constant", 8, warmup).factor(step) for step in range(8)] == expected


def test_a_run_that_began_before_version_0_3_keeps_its_warmup() -> None:
    old = Curve("constant", 8, 4, warmup_from_zero=False)
    assert [old.factor(step) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1])


def test_shapes_at_the_middle_of_the_run() -> None:
    assert Curve("constant", 100).factor(50) == 1
    assert Curve("linear", 100).factor(50) == pytest.approx(0.5)
    assert Curve("cosine", 100).factor(50) == pytest.approx(0.5)
    assert Curve("polynomial", 100, power=2).factor(50) == pytest.approx(0.25)
    assert Curve("cosine_restarts", 100, cycles=2).factor(50) == pytest.approx(1.0)


def test_no_step_of_the_run_has_a_rate_of_zero() -> None:
    assert all(Curve(name, 20).factor(step) > 0 for name in SCHEDULES for step in range(20))


def test_past_the_end_the_floor_holds() -> None:
    assert Curve("cosine_restarts", 10, cycles=2, floor=0.2).factor(50) == pytest.approx(0.2)
    assert Curve("linear", 10, warmup=30).factor(40) >= 0
