"""Learning-rate curves are pure functions of the step."""

import pytest

from streamcache.lora_train.lr import SCHEDULES, Curve


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_warms_up_peaks_at_one_and_stays_within_bounds(schedule: str) -> None:
    curve = Curve(schedule, steps=100, warmup=10, cycles=3, power=2.0, floor=0.1)
    factors = [curve.factor(step) for step in range(100)]
    assert factors[:10] == sorted(factors[:10]) and factors[0] == pytest.approx(1 / 11)
    assert factors[10] == pytest.approx(1.0)
    assert all(0.1 <= factor <= 1.0 for factor in factors[10:])
    assert factors == [Curve(schedule, 100, 10, 3, 2.0, 0.1).factor(step) for step in range(100)]


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
