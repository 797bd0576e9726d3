"""Noise and timesteps: drawn from a private generator, shifted and scaled as the settings say."""

import math
import random
import re

import pytest
import torch
from torch.nn import functional as F

from streamcache.errors import TrainError
from streamcache.lora_train.objective.draws import draw_noise, draw_times, resolution_factor
from streamcache.lora_train.objective.noise_schedule import DiffusionSchedule, FlowSchedule, scaled_linear_alphas
from streamcache.lora_train.objective.settings import ObjectiveSettings

FLOW = FlowSchedule()
EPS = DiffusionSchedule(scaled_linear_alphas())
V = DiffusionSchedule(scaled_linear_alphas(), "v")
EVERY = pytest.mark.parametrize("schedule", [FLOW, EPS, V], ids=["flow", "eps", "v"])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_defect_7_draws_leave_the_global_generator_alone():
    torch.manual_seed(7)
    expected = torch.rand(4)
    torch.manual_seed(7)
    settings = ObjectiveSettings(timesteps="logit_normal", noise_offset=0.1)
    draw_noise(torch.zeros(2, 4, 3, 3), settings, seeded())
    draw_times(2, FLOW, settings, seeded())
    assert torch.equal(torch.rand(4), expected)


def test_the_same_seed_draws_the_same_noise_and_times():
    settings = ObjectiveSettings(timesteps="logit_normal", shift=3.0)
    first, again = (
        (draw_noise(torch.zeros(2, 4, 3, 3), settings, g), draw_times(5, FLOW, settings, g))
        for g in (seeded(3), seeded(3))
    )
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])


@EVERY
@pytest.mark.parametrize("kind", ["uniform", "logit_normal"])
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_times_never_leave_the_chosen_range(schedule, kind, shift):
    settings = ObjectiveSettings(timesteps=kind, shift=shift, t_min=0.3, t_max=0.6)
    t = draw_times(2000, schedule, settings, seeded())
    assert t.min() >= 0.3 and t.max() <= 0.6 and t.std() > 0.02


def test_uniform_times_cover_the_whole_range():
    t = draw_times(4000, FLOW, ObjectiveSettings(), seeded())
    assert abs(t.mean() - 0.5) < 0.02 and t.min() < 0.01 and t.max() > 0.99


TEN = DiffusionSchedule(torch.linspace(0.99, 0.01, 10))


@pytest.mark.parametrize(
    ("settings", "levels"),
    [({}, range(10)), ({"t_min": 0.2, "t_max": 0.6}, range(2, 6))],
)
def test_every_noise_level_is_equally_likely_also_the_first_and_the_last(settings, levels):
    drawn = TEN.timestep(draw_times(100_000, TEN, ObjectiveSettings(**settings), seeded()))
    shares = torch.bincount(drawn, minlength=10) / 100_000
    expected = torch.zeros(10)
    expected[list(levels)] = 1 / len(levels)
    torch.testing.assert_close(shares, expected, atol=0.006, rtol=0)


def test_a_run_of_the_old_rules_draws_the_times_that_it_drew():
    drawn = draw_times(1000, TEN, ObjectiveSettings(t_min=0.1, rules=1), seeded())
    torch.testing.assert_close(drawn, 0.1 + 0.9 * torch.rand(1000, generator=seeded()), rtol=0, atol=0)


@pytest.mark.parametrize("levels", [2, 1000, 10_000])
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_a_drawn_time_is_exactly_a_noise_level(levels, shift):
    schedule = DiffusionSchedule(torch.linspace(0.999, 0.001, levels, dtype=torch.float64))
    settings = ObjectiveSettings(shift=shift)
    drawn = draw_times(20_000, schedule, settings, seeded())
    torch.testing.assert_close(drawn, schedule.timestep(drawn) / (levels - 1), rtol=0, atol=1e-7)
    assert drawn.min() >= 0 and drawn.max() <= 1 and drawn.dtype is torch.float32


def test_logit_normal_times_cluster_around_the_mean():
    middle = draw_times(4000, FLOW, ObjectiveSettings(timesteps="logit_normal"), seeded())
    early = draw_times(4000, FLOW, ObjectiveSettings(timesteps="logit_normal", logit_mean=-1.0), seeded())
    assert abs(middle.median() - 0.5) < 0.02 and abs(early.median() - torch.sigmoid(torch.tensor(-1.0))) < 0.02


@EVERY
def test_a_shift_above_one_moves_times_toward_the_noise(schedule):
    plain = draw_times(2000, schedule, ObjectiveSettings(), seeded())
    moved = draw_times(2000, schedule, ObjectiveSettings(shift=3.0), seeded())
    assert moved.mean() > plain.mean() + 0.1


def test_noise_offset_moves_whole_channels():
    plain = draw_noise(torch.zeros(64, 4, 16, 16), ObjectiveSettings(), seeded())
    offset = draw_noise(torch.zeros(64, 4, 16, 16), ObjectiveSettings(noise_offset=1.0), seeded())
    assert plain.mean((2, 3)).std() < 0.1 and 0.8 < offset.mean((2, 3)).std() < 1.2


def test_j6_the_flux_shift_is_that_of_diffusers_for_every_size():
    # diffusers: mu = calculate_shift(tokens, 256, 4096, 0.5, 1.15), then exp(mu) / (exp(mu) + 1 / t - 1)
    t = torch.linspace(0.05, 0.95, 7)
    for width, height in ((512, 512), (1024, 1024), (768, 1344)):
        slope = (1.15 - 0.5) / (4096 - 256)
        mu = width * height / 256 * slope + 0.5 - slope * 256
        expected = math.exp(mu) / (math.exp(mu) + 1 / t - 1)
        own = math.exp(1.15) * resolution_factor("flux", width * height)  # a Flux model's own shift, for 1024×1024
        torch.testing.assert_close(FLOW.shifted(t, own), expected)


def test_j6_the_sd3_shift_grows_with_the_square_root_of_the_area():
    assert resolution_factor("sd3", 1024 * 1024) == resolution_factor("flux", 1024 * 1024) == 1
    assert resolution_factor("sd3", 512 * 512) == pytest.approx(0.5)


@EVERY
@pytest.mark.parametrize("kind", ["flux", "sd3"])
def test_j6_every_row_is_shifted_by_the_size_of_its_own_image(schedule, kind):
    settings = ObjectiveSettings(resolution_shift=kind, shift=2.0)
    sizes = [512 * 512, 1024 * 1024, 512 * 512, 2048 * 2048]
    found = draw_times(4, schedule, settings, seeded(), sizes)
    for row, size in enumerate(sizes):
        factor = 2.0 * resolution_factor(kind, size)
        alone = draw_times(4, schedule, ObjectiveSettings(shift=factor), seeded())
        assert found[row] == alone[row]


@pytest.mark.parametrize("shape", [(2, 4, 17, 9), (2, 4, 3, 16, 16)], ids=["image", "video"])
def test_j6_multi_resolution_noise_is_that_of_kohyas_scripts(shape):
    # library/custom_train_functions.py, pyramid_noise_like, with private generators instead of global ones
    settings = ObjectiveSettings(multires_noise=6, multires_discount=0.4)
    found = draw_noise(torch.zeros(shape), settings, seeded(5))
    generator, sizes, (w, h) = seeded(5), random.Random(5), shape[-2:]
    noise = torch.randn(shape, generator=generator)
    for i in range(6):
        r = sizes.random() * 2 + 2
        wn, hn = max(1, int(w / (r**i))), max(1, int(h / (r**i)))
        coarse = torch.randn(*shape[:-2], wn, hn, generator=generator)
        noise += F.interpolate(coarse.flatten(1, -3), (w, h), mode="bilinear").reshape(shape) * 0.4**i
        if wn == 1 or hn == 1:
            break
    torch.testing.assert_close(found, noise / noise.std(), rtol=0, atol=0)
    assert found.std() == pytest.approx(1, abs=1e-5)


def test_j6_multi_resolution_noise_without_width_and_height_is_refused():
    # such as the latents of audio
    message = "multires_noise = 6: needs latents of images or video, found the shape (4, 16); set multires_noise = 0"
    with pytest.raises(TrainError, match=f"^{re.escape(message)}$"):
        draw_noise(torch.zeros(2, 4, 16), ObjectiveSettings(multires_noise=6), seeded())
