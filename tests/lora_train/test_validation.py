"""Held-out loss."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.lora_train.config import TrainConfig
from streamcache.lora_train.run.folder import open_run
from streamcache.lora_train.run.losses import NonFiniteLoss
from streamcache.lora_train.run.metrics import read_curves
from streamcache.lora_train.session import open_session
from streamcache.lora_train.validation import hold_out

from ..support.small_parts import SHAPES, SmallDenoiser, latent_of, make_dataset, run_training, words_of
from .short_runs import losses


def test_validation_and_sample_images_do_not_change_the_trained_weights(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path / "plain", dataset, validation_share=0.1, validation_every=100)
    run_training(
        tmp_path / "watched", dataset, validation_share=0.1, validation_every=1, sample_every=1, sample_steps=1
    )
    assert losses(tmp_path / "plain") == losses(tmp_path / "watched")


def test_a_held_out_sample_is_never_trained_on_and_stays_held_out_when_the_set_grows(tmp_path) -> None:
    small, large = make_dataset(tmp_path / "small", 40), make_dataset(tmp_path / "large", 80)
    held = [set(hold_out(data, 0.2, np.zeros(len(data), bool)).samples) for data in (small, large)]
    assert held[0] and held[0] == {index for index in held[1] if index < 40}
    with open_run(tmp_path / "runs", "test") as run:
        session = open_session(SmallDenoiser(), small, TrainConfig(rank=2, validation_share=0.2), run)
    assert set(session.order.epoch(0).samples.tolist()) == set(range(40)) - held[0]
    assert set(session.validation.samples) == held[0]


class Counted(tuple[int, ...]):
    """Counts how often it is walked."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        type(self).walks += 1
        return super().__iter__()


def test_the_rows_of_a_validation_are_listed_once_however_many_batches_are_measured(tmp_path) -> None:
    dataset, denoiser = make_dataset(tmp_path / "set", 40), SmallDenoiser()
    with open_run(tmp_path / "runs", "test") as run:
        session = open_session(denoiser, dataset, TrainConfig(rank=2, batch_size=2, validation_share=0.4), run)
    validation = replace(session.validation, samples=Counted(session.validation.samples))
    losses = [validation.measure(denoiser, session.stepper.precision) for _ in range(2)]
    assert losses[0] == losses[1] and len(denoiser.calls) > 10
    assert Counted.walks == 1


def test_a_validation_loss_that_overflows_is_left_out_and_does_not_end_the_run(tmp_path, caplog) -> None:
    diverges = {"learning_rate": 1e9, "optimizer": "SGD", "clip_norm": 0.0, "steps": 2, "validation_every": 1}
    with suppress(NonFiniteLoss):
        run_training(tmp_path, make_dataset(tmp_path / "set"), validation_share=0.2, **diverges)
    assert "the validation loss is" in caplog.text and len(losses(tmp_path)) >= 1


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"guidance_target": 3.0},
        {"weighting": "min_snr"},
        {"accumulate": 3, "prior_weight": 5.0},
        {"noise_offset": 0.5, "timesteps": "logit_normal", "shift": 3.0},
        {"masked_loss": True, "normalise_masks": True},
        {"preservation_weight": 2.0},
    ],
    ids=str,
)
def test_train_and_held_out_loss_are_on_one_scale_whatever_is_weighted(tmp_path, settings) -> None:
    """All samples are alike and the rate is next to nothing, so that both estimate the same number."""
    with CacheWriter(tmp_path / "set") as writer:
        for number in range(60):
            shape = SHAPES[number % 3]
            mask = torch.zeros(1, *shape)
            mask[:, : shape[0] // 2] = 1
            facts = {"mask": mask, "weight": 4.0 if number % 2 else 0.25, "set": "class" if number >= 40 else "main"}
            writer.add(latent_of(number, shape), words_of(0), "alike", source=f"{number}.png", **facts)
        writer.describe_set("class", {"prior": True})
        writer.put("nothing said", words_of(-1), "conditioning")
        writer.name("empty caption", "nothing said")
    still = {"steps": 300, "learning_rate": 1e-12, "save_every": 0, "validation_share": 0.4, "validation_every": 1000}
    run_training(tmp_path, open_cache(tmp_path / "set"), **{**still, **settings})
    curves = read_curves(tmp_path / "runs/test/metrics.jsonl")
    trained, (_, held) = np.mean([loss for _, loss in curves.losses]), curves.validation[-1]
    assert held == pytest.approx(trained, rel=0.1)
