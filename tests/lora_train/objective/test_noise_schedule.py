"""Noise schedules: their ends, targets and ratios."""

import pytest
import torch

from streamcache.errors import TrainError
from streamcache.lora_train.denoiser import NoiseSchedule
from streamcache.lora_train.objective.noise_schedule import DiffusionSchedule, FlowSchedule, scaled_linear_alphas

FLOW = FlowSchedule()
EPS = DiffusionSchedule(scaled_linear_alphas())
V = DiffusionSchedule(scaled_linear_alphas(), "v")
EVERY = pytest.mark.parametrize("schedule", [FLOW, EPS, V], ids=["flow", "eps", "v"])


def pair(batch: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    return torch.randn(batch, 4, 5, 6, generator=made), torch.randn(batch, 4, 5, 6, generator=made)


@EVERY
def test_every_schedule_follows_the_protocol(schedule):
    assert isinstance(schedule, NoiseSchedule)


def test_flow_is_the_data_at_0_and_the_noise_at_1():
    latents, noise = pair(2)
    mixed = FLOW.noisy(latents, noise, torch.tensor([0.0, 1.0]))
    assert torch.equal(mixed[0], latents[0]) and torch.equal(mixed[1], noise[1])


def test_flow_target_is_the_derivative_of_the_mixture():
    latents, noise = pair(1)
    early, late = (FLOW.noisy(latents, noise, torch.tensor([t])) for t in (0.25, 0.75))
    torch.testing.assert_close((late - early) / 0.5, FLOW.target(latents, noise, torch.tensor([0.5])))


def test_eps_target_is_the_noise_itself():
    latents, noise = pair()
    assert EPS.target(latents, noise, torch.rand(3)) is noise


def test_v_target_recovers_the_data():
    latents, noise = pair()
    t = torch.tensor([0.1, 0.5, 0.9])
    alpha = V.alpha(t).view(3, 1, 1, 1)
    recovered = alpha.sqrt() * V.noisy(latents, noise, t) - (1 - alpha).sqrt() * V.target(latents, noise, t)
    torch.testing.assert_close(recovered, latents)


@pytest.mark.parametrize("schedule", [EPS, V], ids=["eps", "v"])
def test_diffusion_keeps_unit_variance(schedule):
    made = torch.Generator().manual_seed(1)
    latents, noise = torch.randn(2, 64, 64, 64, generator=made), torch.randn(2, 64, 64, 64, generator=made)
    assert abs(schedule.noisy(latents, noise, torch.tensor([0.2, 0.8])).var().item() - 1) < 0.02


@EVERY
def test_snr_falls_with_t_and_stays_finite_at_both_ends(schedule):
    snr = schedule.snr(torch.linspace(0, 1, 101))
    assert torch.isfinite(snr).all() and (snr > 0).all() and (snr.diff() <= 0).all()


@EVERY
def test_a_shift_divides_the_snr_by_its_square(schedule):
    t = torch.tensor([0.2, 0.4, 0.6])
    torch.testing.assert_close(schedule.snr(schedule.shifted(t, 2.0)) * 4, schedule.snr(t), rtol=0.03, atol=0)


@EVERY
def test_a_shift_of_one_changes_nothing(schedule):
    t = torch.linspace(0, 1, 7)
    torch.testing.assert_close(schedule.shifted(t, 1.0), t)


@EVERY
def test_each_row_has_its_own_time_at_any_rank(schedule):
    latents, noise = torch.randn(2, 3, 2, 4, 5), torch.randn(2, 3, 2, 4, 5)
    t = torch.tensor([0.3, 0.7])
    both = schedule.noisy(latents, noise, t)
    assert torch.equal(both[1:], schedule.noisy(latents[1:], noise[1:], t[1:]))


def test_a_prediction_that_no_diffusion_schedule_has_is_refused():
    with pytest.raises(TrainError, match='"flow".*"eps" or "v"'):
        DiffusionSchedule(scaled_linear_alphas(), "flow")
