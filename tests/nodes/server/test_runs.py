"""Runs on pages: status and progress of each, and names and files that cannot point elsewhere."""

import json
import os
from pathlib import Path

import filelock
import pytest

from streamcache.lora_train.errors import TrainError
from streamcache.lora_train.run.folder import LOCK, open_run
from streamcache.lora_train.run.metrics import MetricsFile, TrainProgress
from streamcache.nodes.server.live_runs import LiveRun, LiveRuns
from streamcache.nodes.server.runs import RunPlaces, Runs
from streamcache.nodes.server.untrusted import Refused


def progress(step: int, loss: float = 0.5) -> TrainProgress:
    return TrainProgress(step, 100, 0, loss, loss, 1e-4, 2.0, 8.0, 49.0, 0.01, 1 << 20)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(RunPlaces(tmp_path / "runs", tmp_path / "loras", (tmp_path / "caches",)), LiveRuns())


def make_run(runs: Runs, name: str, **facts) -> Path:
    with open_run(runs.places.runs, name, "resume") as run, MetricsFile(run.metrics) as metrics:
        run.describe(**facts)
        for step in range(1, 4):
            metrics.write(step=step, epoch=0, loss=1 / step, learning_rate=1e-4, waited=0.0, time=step)
    return run.folder


def test_a_run_whose_process_died_is_interrupted_and_a_locked_one_is_running(runs: Runs):
    folder = make_run(runs, "cat", status="running", steps=9)
    assert (runs.row(folder)["status"], runs.row(folder)["step"]) == ("interrupted", 3)
    with filelock.FileLock(folder / LOCK):
        assert runs.row(folder)["status"] == "running" and not runs.row(folder)["live"]
        with pytest.raises(Refused, match="stop it first"):
            runs.idle_folder("cat")
    assert runs.idle_folder("cat") == folder


def test_a_live_run_shows_its_progress_and_its_node_only_to_its_page(runs: Runs):
    folder = make_run(runs, "cat", status="running", steps=100)
    with runs.live.running(LiveRun("cat", "7", "mine")) as live:
        live.update(progress(5))
        (row,) = runs.rows("mine")
        assert (row["status"], row["live"], row["node"], row["step"]) == ("running", True, "7", 5)
        assert row["samples_per_second"] == 8.0 and not row["stopping"]
        assert runs.rows("other")[0]["node"] is None and runs.rows()[0]["node"] is None
        assert runs.describe("cat", 50, 0.9)["curves"]["loss"][-1] == [5, 0.5]
        with pytest.raises(Refused, match="stop it first"):
            runs.idle_folder("cat")
        runs.live.stop("cat")
        assert live.stop.is_set() and runs.row(folder)["stopping"]
    with pytest.raises(Refused, match="not training on this server"):
        runs.live.stop("cat")


def test_a_row_has_status_step_dataset_lora_and_the_reason_of_a_failure(runs: Runs, tmp_path: Path):
    runs.places.loras.mkdir()
    (runs.places.loras / "done.safetensors").touch()
    make_run(runs, "done", status="done", step=3, dataset=str(tmp_path / "caches" / "group" / "my_set"))
    make_run(runs, "bad", status="failed", step=2, dataset="/elsewhere/set", problem="out of memory")
    (runs.places.runs / "odd").mkdir()
    (runs.places.runs / "odd" / "run.json").write_text("[]")
    rows = {row["name"]: row for row in runs.rows()}
    assert set(rows) == {"done", "bad", "odd"}
    assert (rows["done"]["dataset"], rows["done"]["lora"], rows["done"]["step"]) == (
        "group/my_set",
        "done.safetensors",
        3,
    )
    assert (rows["bad"]["dataset"], rows["bad"]["lora"], rows["bad"]["problem"]) == ("set", "", "out of memory")
    assert rows["odd"]["status"] == "failed"
    json.dumps(list(rows.values()), allow_nan=False)


def test_an_interrupted_run_shows_the_step_it_can_resume_from(runs: Runs):
    make_run(runs, "cut", status="interrupted", step=12)
    make_run(runs, "done", status="done", step=12)
    for name in ("cut", "done"):
        states = runs.places.runs / name / "states"
        states.mkdir()
        for step in (10, 12):
            (states / f"step-{step:08}.safetensors").touch()
    make_run(runs, "bare", status="interrupted", step=1)
    assert {row["name"]: row["saved_step"] for row in runs.rows()} == {"cut": 12, "done": 0, "bare": 0}


@pytest.mark.parametrize("name", ["..", "../x", "/etc", "a/b", "a\\b", "", "C:x", "x" * 200, "nul\0"])
def test_an_invalid_run_name_is_refused(runs: Runs, name: str):
    with pytest.raises((TrainError, ValueError)):
        runs.folder(name)


def test_a_link_out_of_the_folder_is_refused(runs: Runs, tmp_path: Path):
    outside = tmp_path / "outside"
    (outside / "samples").mkdir(parents=True)
    (outside / "run.json").write_text("{}")
    runs.places.runs.mkdir()
    (runs.places.runs / "out").symlink_to(outside)
    with pytest.raises(ValueError, match="leads out of"):
        runs.describe("out", 50, 0)
    assert runs.rows() == []


@pytest.mark.parametrize("file", ["../run.json", "run.json", "step-1-0.png/..", "step-x-0.png", "", "/etc/passwd"])
def test_only_sample_images_are_served(runs: Runs, file: str):
    make_run(runs, "cat")
    with pytest.raises(Refused, match="expected"):
        runs.sample("cat", file)


def test_the_report_of_a_run_is_served_and_nothing_else(runs: Runs, tmp_path: Path):
    folder = make_run(runs, "cat")
    with pytest.raises(Refused, match="no report"):
        runs.report("cat")
    assert runs.describe("cat", 50, 0)["report"] == ""
    (folder / "report.html").write_text("<p>cat</p>")
    assert runs.report("cat") == b"<p>cat</p>" and runs.describe("cat", 50, 0)["report"] == "runs/cat/report.html"
    (tmp_path / "secret").write_text("secret")
    (folder / "report.html").unlink()
    (folder / "report.html").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match="leads out of"):
        runs.report("cat")


def test_a_huge_report_is_refused(runs: Runs, monkeypatch: pytest.MonkeyPatch):
    (make_run(runs, "cat") / "report.html").write_text("x" * 100)
    monkeypatch.setattr("streamcache.nodes.server.runs.MAX_REPORT", 99)
    with pytest.raises(Refused, match="larger than"):
        runs.report("cat")


def test_sample_images_are_listed_by_step(runs: Runs):
    folder = make_run(runs, "cat")
    (folder / "samples").mkdir()
    for name in ("step-00000020-0.png", "step-00000003-1.png", "step-00000003-0.png", "other.png"):
        (folder / "samples" / name).write_bytes(name.encode())
    found = runs.describe("cat", 50, 0)["samples"]
    assert [(each["step"], each["prompt"]) for each in found] == [(3, 0), (3, 1), (20, 0)]
    picture = runs.sample("cat", found[1]["file"])
    assert (picture.data, picture.mtime) == (b"step-00000003-1.png", found[1]["mtime"])
    os.utime(folder / "samples" / found[1]["file"], ns=(0, 1_700_000_000_123_456_789))
    assert runs.sample("cat", found[1]["file"]).mtime == "1700000000123456789" != found[1]["mtime"]
    with pytest.raises(Refused, match="has no sample image"):
        runs.sample("cat", "step-00000004-0.png")
