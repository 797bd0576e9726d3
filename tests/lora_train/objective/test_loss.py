"""Losses against native targets, weights and masks."""

import math

import pytest
import torch

from streamcache.errors import TrainError
from streamcache.lora_train.config import TrainConfig
from streamcache.lora_train.denoiser import PreparedBatch
from streamcache.lora_train.objective.loss import (
    evaluate,
    guided,
    huber_deltas,
    join_masks,
    mean_loss,
    row_losses,
    row_weights,
    time_weights,
)
from streamcache.lora_train.objective.noise_schedule import DiffusionSchedule, FlowSchedule, scaled_linear_alphas
from streamcache.lora_train.objective.settings import ObjectiveSettings

FLOW = FlowSchedule()
EPS = DiffusionSchedule(scaled_linear_alphas())
V = DiffusionSchedule(scaled_linear_alphas(), "v")
EVERY = pytest.mark.parametrize("schedule", [FLOW, EPS, V], ids=["flow", "eps", "v"])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class CountingDenoiser:
    """Predicts its target plus an error of one everywhere, and remembers the rows of every call."""

    def __init__(self, schedule, latents, noise):
        self.schedule, self.latents, self.noise, self.calls = schedule, latents, noise, []

    def predict(self, x_t, t, conditioning):
        self.calls.append((len(x_t), conditioning))
        return self.schedule.target(self.latents, self.noise, t) + 1


@EVERY
def test_defect_1_a_batch_of_3_is_one_model_call_of_3_rows(schedule):
    latents, noise = torch.randn(3, 4, 6, 6), torch.randn(3, 4, 6, 6)
    denoiser = CountingDenoiser(schedule, latents, noise)
    losses = evaluate(denoiser, PreparedBatch(latents, "captions"), noise, torch.rand(3), ObjectiveSettings())
    assert denoiser.calls == [(3, "captions")] and losses.shape == (3,)


@EVERY
def test_defect_4_an_error_of_one_in_native_space_costs_one_at_every_time(schedule):
    latents, noise = torch.randn(3, 4, 6, 6), torch.randn(3, 4, 6, 6)
    denoiser = CountingDenoiser(schedule, latents, noise)
    t = torch.tensor([0.01, 0.5, 0.99])
    losses = evaluate(denoiser, PreparedBatch(latents, None), noise, t, ObjectiveSettings())
    torch.testing.assert_close(losses, torch.ones(3), rtol=1e-4, atol=0)


@pytest.mark.parametrize("loss, expected", [("mse", 4.0), ("l1", 2.0), ("huber", 2 * 0.1 * ((4 + 0.01) ** 0.5 - 0.1))])
def test_losses_follow_their_definitions(loss, expected):
    found = row_losses(
        torch.full((1, 1, 2, 2), 2.0), torch.zeros(1, 1, 2, 2), torch.tensor([0.5]), FLOW, ObjectiveSettings(loss=loss)
    )
    assert found.item() == pytest.approx(expected)


def test_huber_costs_small_errors_like_mse():
    small = torch.full((1, 1, 2, 2), 1e-3)
    found = row_losses(small, torch.zeros_like(small), torch.tensor([0.5]), FLOW, ObjectiveSettings(loss="huber"))
    assert found.item() == pytest.approx(1e-6, rel=1e-2)


def test_half_precision_predictions_are_scored_in_float32():
    prediction = torch.full((1, 1, 2, 2), 300.0, dtype=torch.float16)  # squared, it would overflow float16
    assert (
        row_losses(prediction, torch.zeros(1, 1, 2, 2), torch.tensor([0.5]), FLOW, ObjectiveSettings()).item() == 90_000
    )


def test_min_snr_follows_its_definition_for_eps_and_v():
    t, settings = torch.linspace(0.05, 0.95, 9), ObjectiveSettings(weighting="min_snr")
    snr = EPS.snr(t).clamp(1e-3, 1e3)
    torch.testing.assert_close(time_weights(t, EPS, settings), snr.clamp(max=5) / snr)
    torch.testing.assert_close(time_weights(t, V, settings), snr.clamp(max=5) / (snr + 1))


@pytest.mark.parametrize(("weighting", "rules"), [("min_snr", 2), ("debiased", 1)])
def test_a_weighting_means_the_same_objective_for_v_as_for_eps(weighting, rules):
    settings, t = ObjectiveSettings(weighting=weighting, rules=rules), torch.tensor([0.2, 0.5, 0.8])
    latents, noise, error = (torch.randn(3, 2, 8, 8, generator=seeded(s)) for s in range(3))
    v_target = V.target(latents, noise, t)
    # eps = √ᾱ·v + √(1 - ᾱ)·x_t, so an error of v is √ᾱ of it in eps.
    eps_error = V.alpha(t).sqrt().view(3, 1, 1, 1) * error
    torch.testing.assert_close(
        row_losses(v_target + error, v_target, t, V, settings), row_losses(noise + eps_error, noise, t, EPS, settings)
    )


def test_debiased_weights_are_those_of_kohyas_scripts_for_eps_and_v():
    # library/custom_train_functions.py, apply_debiased_estimation: 1 / √snr, and 1 / (snr + 1) for v, snr at most 1000
    t, settings = torch.linspace(0, 1, 50), ObjectiveSettings(weighting="debiased")
    snr = EPS.snr(t).clamp(max=1000)
    torch.testing.assert_close(time_weights(t, EPS, settings), 1 / snr.sqrt())
    torch.testing.assert_close(time_weights(t, V, settings), 1 / (snr + 1))


def test_a_weighting_means_the_same_objective_for_flow_as_for_eps():
    settings, t = ObjectiveSettings(weighting="min_snr"), torch.tensor([0.2, 0.5, 0.8])
    snr = FLOW.snr(t)
    # eps = x_t + (1 - t)·velocity.
    torch.testing.assert_close(time_weights(t, FLOW, settings), (1 - t) ** 2 * snr.clamp(max=5) / snr)


@EVERY
@pytest.mark.parametrize("weighting", ["none", "min_snr", "debiased"])
def test_weights_stay_finite_at_both_ends(schedule, weighting):
    weights = time_weights(torch.tensor([0.0, 1.0]), schedule, ObjectiveSettings(weighting=weighting))
    assert torch.isfinite(weights).all()


def test_an_error_outside_of_the_mask_costs_nothing():
    error = torch.zeros(2, 3, 4, 4)
    error[:, :, :, 2:] = 1
    left = torch.zeros(32, 32)
    left[:, :16] = 1
    settings = ObjectiveSettings(masked_loss=True)
    found = row_losses(error, torch.zeros_like(error), torch.rand(2), FLOW, settings, [left, None])
    assert found[0] == 0 and found[1] == 0.5


def test_masks_of_any_resolution_reach_the_latents_size_and_keep_a_floor():
    joined = join_masks([torch.zeros(1, 40, 24), torch.ones(5, 3)], torch.zeros(2, 4, 5, 3), floor=0.1)
    assert (
        joined.shape == (2, 1, 5, 3)
        and torch.allclose(joined[0], torch.tensor(0.1))
        and torch.equal(joined[1], torch.ones(1, 5, 3))
    )


def test_video_latents_take_a_mask_for_all_frames_or_one_each():
    like = torch.zeros(2, 4, 3, 5, 5)
    assert join_masks([torch.ones(10, 10), torch.ones(3, 10, 10)], like).shape == (2, 1, 3, 5, 5)
    with pytest.raises(TrainError, match="found 2 planes, expected 1 or the latent's 3"):
        join_masks([torch.ones(2, 10, 10), None], like)


def test_a_missing_mask_in_the_list_is_refused():
    with pytest.raises(TrainError, match="found 1 for a batch of 2"):
        join_masks([None], torch.zeros(2, 4, 5, 5))


def test_d6_prior_rows_count_by_the_prior_weight():
    weights = row_weights(torch.tensor([1.0, 2.0]), torch.tensor([False, True]), ObjectiveSettings(prior_weight=0.5))
    assert weights.tolist() == [1.0, 1.0]


def test_a_weight_counts_even_for_a_row_alone_in_its_batch():
    assert mean_loss(torch.tensor([3.0]), torch.tensor([0.5])).item() == 1.5


@pytest.mark.parametrize("prediction", ["eps", "v"])
def test_j6_the_huber_schedules_are_those_of_kohyas_scripts(prediction):
    # library/train_util.py, get_huber_threshold_if_needed, with huber_scale 1
    alphas = scaled_linear_alphas().float()
    schedule, timesteps = DiffusionSchedule(alphas, prediction), torch.tensor([0, 1, 500, 998, 999])
    for name, expected in (
        ("exponential", torch.exp(math.log(0.1) / 1000 * timesteps)),
        ("snr", (1 - 0.1) / (1 + ((1 - alphas[timesteps]) / alphas[timesteps]) ** 0.5) ** 2 + 0.1),
    ):
        settings = ObjectiveSettings(loss="huber", huber_delta=0.1, huber_schedule=name)
        torch.testing.assert_close(huber_deltas(timesteps / 999, schedule, settings), expected)


@EVERY
@pytest.mark.parametrize("name", ["exponential", "snr"])
def test_j6_a_scheduled_huber_loss_uses_the_delta_of_each_row(schedule, name):
    settings = ObjectiveSettings(loss="huber", huber_schedule=name)
    t, error = torch.tensor([0.1, 0.9]), torch.full((2, 1, 2, 2), 2.0)
    found = row_losses(error, torch.zeros_like(error), t, schedule, settings)
    deltas = huber_deltas(t, schedule, settings)
    torch.testing.assert_close(found, 2 * deltas * ((4 + deltas**2).sqrt() - deltas))
    assert deltas[0] > deltas[1]


@EVERY
def test_j6_input_perturbation_changes_the_input_and_not_the_target(schedule):
    latents, noise, other = (torch.randn(2, 4, 6, 6, generator=seeded(s)) for s in range(3))

    class Seeing(CountingDenoiser):
        def predict(self, x_t, t, conditioning):
            self.x_t = x_t
            return self.schedule.target(latents, noise, t)

    denoiser, t = Seeing(schedule, latents, noise), torch.tensor([0.3, 0.8])
    settings, prepared = ObjectiveSettings(input_perturbation=0.1), PreparedBatch(latents, None)
    assert evaluate(denoiser, prepared, noise, t, settings, perturbation=other).tolist() == [0, 0]
    torch.testing.assert_close(denoiser.x_t, schedule.noisy(latents, noise + 0.1 * other, t))


def test_j6_a_normalised_mask_costs_as_much_as_a_whole_image():
    error, small = torch.ones(3, 2, 4, 4), torch.zeros(4, 4)
    small[:2, :2] = 1
    masks = [small, None, torch.zeros(4, 4)]
    plain, settings = ObjectiveSettings(masked_loss=True), ObjectiveSettings(masked_loss=True, normalise_masks=True)
    losses = [row_losses(error, 0 * error, torch.rand(3), FLOW, each, masks).tolist() for each in (plain, settings)]
    assert losses == [[0.25, 1, 0], [1, 1, 0]]


def test_j5_a_guided_target_is_that_of_the_peers():
    # ai-toolkit: without + s · (target - without). diffusion-pipe fits (cond + (s - 1) · without) / s to the target.
    target, without, t = torch.randn(2, 4, 3, 3), torch.randn(2, 4, 3, 3), torch.tensor([0.25, 1.0])
    found = guided(target, without, t, FLOW, ObjectiveSettings(guidance_target=3.0))
    torch.testing.assert_close(found, without + 3 * (target - without))
    torch.testing.assert_close((found + 2 * without) / 3, target, rtol=1e-5, atol=1e-5)
    faded = guided(target, without, t, FLOW, ObjectiveSettings(guidance_target=3.0, guidance_schedule="sigma"))
    torch.testing.assert_close(faded[0], (without + 1.5 * (target - without))[0])
    torch.testing.assert_close(faded[1], found[1], rtol=1e-3, atol=1e-3)  # the SNR is never quite 0


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"loss": "mae"}, '"mae".*mse, huber, l1'),
        ({"weighting": "snr"}, "none, min_snr, debiased"),
        ({"timesteps": "cosine"}, "uniform, logit_normal"),
        ({"shift": 0.0}, "shift = 0.0: expected a finite number above 0"),
        ({"min_snr_gamma": float("nan")}, "min_snr_gamma = nan"),
        ({"noise_offset": -0.1}, "at least 0"),
        ({"logit_mean": float("inf")}, "expected a finite number$"),
        ({"huber_schedule": "cosine"}, "constant, exponential, snr"),
        ({"resolution_shift": "auto"}, "off, flux, sd3"),
        ({"guidance_target": 3.0, "caption_dropout": 0.1}, "a dropped caption has no guidance"),
        ({"t_min": 0.6, "t_max": 0.5}, "t_min = 0.6: not below t_max = 0.5"),
    ],
)
def test_invalid_settings_are_refused_by_name(wrong, message):
    with pytest.raises(TrainError, match=message):
        TrainConfig(**wrong)
