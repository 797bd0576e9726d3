"""Metrics that survive a kill, live progress, smoothing, and a report page that is one file."""

import json
import sys

import pytest
import torch

from streamcache.errors import TrainError
from streamcache.lora_train.run.metrics import (
    Clock,
    Events,
    MetricsFile,
    Reporter,
    format_seconds,
    memory_in_use,
    read_curves,
    read_metrics,
)
from streamcache.lora_train.run.smoothing import smooth_curve

CPU = torch.device("cpu")


def test_every_step_is_a_line_and_is_reported_to_the_callback(tmp_path) -> None:
    heard = []
    with MetricsFile(tmp_path / "metrics.jsonl") as metrics:
        reporter = Reporter(metrics, 10, CPU, heard.append)
        for step in range(1, 4):
            reporter.step(step, 0, 1 / step, 1e-3, waited=0.0)
        reporter.validation(3, 0.25)
    rows = list(read_metrics(tmp_path / "metrics.jsonl"))
    assert [row["loss"] for row in rows[:3]] == [progress.loss for progress in heard] == [1.0, 0.5, 1 / 3]
    assert read_curves(tmp_path / "metrics.jsonl").validation == [(3, 0.25)]
    last = heard[-1]
    assert last.step == 3 and last.steps == 10 and last.rate > 0 and last.time_left > 0 and last.memory > 1_000_000
    assert "step 3/10" in last.line() and "data wait 0.0%" in last.line()


def test_samples_per_second_count_the_rows_of_all_batches_of_a_step(tmp_path) -> None:
    with MetricsFile(tmp_path / "m.jsonl") as metrics:
        reporter = Reporter(metrics, 2, CPU)
        first = reporter.step(1, 0, 1.0, 1e-3, waited=0.0, rows=8)
        second = reporter.step(2, 0, 1.0, 1e-3, waited=0.0, rows=4)
    assert first.samples_per_second == pytest.approx(8 * first.rate)
    assert second.samples_per_second == pytest.approx(6 * second.rate)


def test_b8_the_share_of_waiting_is_reported(tmp_path) -> None:
    with MetricsFile(tmp_path / "m.jsonl") as metrics:
        reporter = Reporter(metrics, 2, CPU)
        assert reporter.step(1, 0, 1.0, 1e-3, waited=1e9).data_wait == 1.0
        assert reporter.step(2, 0, 1.0, 1e-3, waited=0.0).data_wait == 0.0


def test_resuming_drops_the_lines_after_the_saved_step_and_a_line_cut_short(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        for step in range(1, 8):
            metrics.write(step=step, loss=float(step))
    with open(path, "a") as file:
        file.write('{"step": 8, "lo')
    with MetricsFile(path, resume_at=5) as metrics:
        metrics.write(step=6, loss=0.5)
    assert read_curves(path).losses == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.0), (6, 0.5)]


def test_a_new_run_starts_with_an_empty_file(tmp_path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 1.0}) + "\n")
    with MetricsFile(tmp_path / "metrics.jsonl"):
        pass
    assert list(read_metrics(tmp_path / "metrics.jsonl")) == []


def test_missing_tensorboard_is_reported_with_its_install_command(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(TrainError, match="pip install tensorboardX"):
        Events(tmp_path)


def test_values_are_written_for_tensorboard(tmp_path) -> None:
    pytest.importorskip("tensorboardX")
    with Events(tmp_path) as events:
        events.add_scalar("loss", 1.0, 1)
    assert list(tmp_path.iterdir())


def test_memory_is_measured_in_bytes() -> None:
    before = memory_in_use(CPU)
    block = torch.ones(200_000_000, dtype=torch.uint8)
    assert memory_in_use(CPU) - before == pytest.approx(len(block), rel=0.2)


def test_durations_are_formatted() -> None:
    assert [format_seconds(s) for s in (5, 75, 3700)] == ["0:05", "1:15", "1:01:40"]


def test_smoothing_starts_at_the_first_value_and_zero_changes_nothing() -> None:
    assert smooth_curve([4.0, 4.0, 4.0], 0.9) == pytest.approx([4.0, 4.0, 4.0])
    assert smooth_curve([1.0, 5.0, 2.0], 0.0) == [1.0, 5.0, 2.0]


def test_times_go_on_over_a_resume_also_if_its_first_step_takes_longer_than_all_before(tmp_path) -> None:
    path, times = tmp_path / "metrics.jsonl", [1.0, 2.0, 0.5]  # begun again once, by an older version
    path.write_text("".join(json.dumps({"step": n + 1, "loss": 1.0, "time": at}) + "\n" for n, at in enumerate(times)))
    for step in (4, 5):
        with MetricsFile(path, resume_at=step - 1) as metrics:
            reporter = Reporter(metrics, 5, CPU)
            reporter._began -= 10.0  # a slow first step
            reporter.step(step, 0, 1.0, 1e-3, waited=0.0)
    found, clock = [row["time"] for row in read_metrics(path)], Clock()
    assert found == pytest.approx([1.0, 2.0, 2.5, 12.5, 22.5], abs=0.1)
    assert [clock.add(at) for at in found] == found
    assert [clock.add(at) for at in (None, "3", -1.0, float("inf"))] == [found[-1]] * 4
