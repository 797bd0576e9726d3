"""Metrics that survive a kill, live progress, smoothing, and a report page that is one file."""

import json

import pytest
import torch
from PIL import Image

from streamcache.lora_train.errors import TrainError
from streamcache.lora_train.report_page import Section, render_page
from streamcache.lora_train.run.metrics import (
    MetricsFile,
    Reporter,
    format_seconds,
    memory_in_use,
    open_events,
    read_curves,
    read_metrics,
    smooth_curve,
)

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


def test_missing_tensorboard_is_reported_with_its_install_command(tmp_path) -> None:
    try:
        import tensorboardX  # noqa: F401
    except ImportError:
        with pytest.raises(TrainError, match="pip install tensorboardX"):
            open_events(tmp_path)
    else:
        with open_events(tmp_path) as events:
            events.add_scalar("loss", 1.0, 1)
        assert list(tmp_path.iterdir())


def test_memory_is_measured_and_durations_are_formatted() -> None:
    assert memory_in_use(CPU) > 1_000_000
    assert [format_seconds(s) for s in (5, 75, 3700)] == ["0:05", "1:15", "1:01:40"]


def test_the_page_is_one_file_and_escapes_all_text() -> None:
    page = render_page(
        "Run <1>", "", {"steps": "20"}, [Section("Loss", Image.new("RGB", (4, 4)), table={"a<b": "<script>"})]
    )
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert page.count("data:image/png;base64,") == 1 and "http" not in page


def test_smoothing_starts_at_the_first_value_and_zero_changes_nothing() -> None:
    assert smooth_curve([4.0, 4.0, 4.0], 0.9) == pytest.approx([4.0, 4.0, 4.0])
    assert smooth_curve([1.0, 5.0, 2.0], 0.0) == [1.0, 5.0, 2.0]
