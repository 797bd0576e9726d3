"""What to change if a training does not fit."""

from dataclasses import replace

import pytest

from streamcache.lora_train import Forecast, TrainConfig, TrainError, Untraceable, find_fitting, report_memory
from streamcache.lora_train.forecast.advice import MemoryReport
from streamcache.reference import ReferenceDenoiser
from streamcache.reference.model import ReferenceModel

from ...support.small_parts import make_dataset

GB = 10**9
FOUND = Forecast(
    weights=5 * GB, adapter=0, optimizer=0, activations=15 * GB, peak=20 * GB, room=12 * GB, device="cuda:0",
    rows=4, shape=(4, 128, 128), seconds=1.0,
)  # fmt: skip


def answer(**effects):
    """Forecasts in which each setting divides the activations or takes the weights away; and what was asked."""
    asked = []

    def ask(change):
        asked.append(dict(change))
        weights = 0 if change.get("offload") else FOUND.weights
        activations = FOUND.activations
        for name in change:
            activations /= effects.get(name, 1)
        return replace(FOUND, weights=weights, activations=int(activations), peak=int(weights + activations))

    return ask, asked


def test_the_cheapest_change_that_fits_is_found_first():
    ask, asked = answer(checkpointing=5)
    tried = find_fitting(FOUND, TrainConfig(batch_size=4), ask, offloads=True)
    assert asked == [{"checkpointing": True}] and tried[-1].forecast.peak == 8 * GB
    assert tried[-1].sentence() == "With checkpointing = true it needs 8 GB"


def test_a_smaller_batch_keeps_the_rows_of_a_step():
    ask, _ = answer(batch_size=4)
    tried = find_fitting(FOUND, TrainConfig(batch_size=4, accumulate=2, checkpointing=True), ask, offloads=True)
    assert tried[-1].settings == {"batch_size": 2, "accumulate": 4}


def test_changes_add_up_until_one_fits():
    ask, asked = answer(checkpointing=1.2, activation_offload=1.2)
    tried = find_fitting(FOUND, TrainConfig(), ask, offloads=True)
    assert tried[-1].settings == {"checkpointing": True, "offload": True, "activation_offload": True}
    assert tried[-1].forecast.fits and not any(advice.forecast.fits for advice in tried[:-1])
    assert {"checkpointing": True, "offload": True} in asked


def test_if_nothing_fits_the_last_try_says_so():
    ask, _ = answer()
    tried = find_fitting(FOUND, TrainConfig(batch_size=2), ask, offloads=False)
    report = MemoryReport(FOUND, tried)
    assert not report.fits and report.lines()[-1].endswith("which is still too much")
    assert "does not fit" in report.lines()[0] and "12 GB" in report.lines()[0]


@pytest.mark.parametrize("problem", [TrainError("bitsandbytes cannot be imported"), Untraceable("needs data")])
def test_a_change_without_a_forecast_is_skipped(problem):
    own, asked = answer(activation_offload=4)

    def ask(change):
        if change.keys() == {"checkpointing"}:
            asked.append(dict(change))
            raise problem
        return own(change)

    tried = find_fitting(FOUND, TrainConfig(), ask, offloads=False)
    assert asked[0] == {"checkpointing": True}
    assert [advice.settings for advice in tried] == [{"checkpointing": True, "activation_offload": True}]
    assert MemoryReport(FOUND, tried).lines()[0] == FOUND.sentence()


@pytest.mark.parametrize("problem", [TrainError("bitsandbytes cannot be imported"), Untraceable("needs data")])
def test_the_first_forecast_stays_if_no_change_has_one(problem, tmp_path, monkeypatch):
    forecasts = iter([FOUND])

    def forecast(*_: object):
        for found in forecasts:
            return found
        raise problem

    monkeypatch.setattr("streamcache.lora_train.forecast.advice.forecast_training", forecast)
    report = report_memory(ReferenceDenoiser(ReferenceModel()), make_dataset(tmp_path), TrainConfig())
    assert report.forecast is FOUND and not report.fits and not report.advice and not report.problem


def test_if_nothing_is_left_to_try_the_last_line_says_so():
    ask, asked = answer()
    tried = find_fitting(replace(FOUND, device="cpu"), TrainConfig(checkpointing=True), ask, offloads=False)
    lines = MemoryReport(FOUND, tried).lines()
    assert not asked and len(lines) == 2
    assert lines[-1] == "No setting is left that needs less memory; smaller images or a base in fp8 do"


@pytest.mark.parametrize("own", [{"optimizer_args": {"amsgrad": True}}, {"other_optimizer": "Lion"}])
def test_an_optimizer_with_arguments_or_of_another_package_is_not_replaced(own, monkeypatch):
    monkeypatch.setattr("streamcache.lora_train.forecast.advice.available", lambda: ["AdamW", "AdamW8bit"])
    found = replace(FOUND, optimizer=15 * GB)
    for config, first in ((TrainConfig(), {"optimizer": "AdamW8bit"}), (TrainConfig(**own), {"checkpointing": True})):
        ask, asked = answer(checkpointing=5)
        find_fitting(found, config, ask, offloads=True)
        assert asked[0] == first


@pytest.mark.parametrize(("room", "fits"), [(0, True), (21 * GB, True), (20 * GB, False)])
def test_an_unknown_room_is_no_reason_to_refuse_and_a_full_one_is_too_tight(room, fits):
    assert replace(FOUND, room=room).fits is fits
