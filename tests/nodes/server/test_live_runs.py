"""Runs of this process."""

from pathlib import Path

import pytest

from streamcache.lora_train.run.folder import open_run
from streamcache.lora_train.run.metrics import MetricsFile, TrainProgress
from streamcache.nodes.outside.untrusted import Refused
from streamcache.nodes.server.live_runs import LiveRun, LiveRuns
from streamcache.nodes.server.runs import RunPlaces, Runs


def progress(step: int, loss: float = 0.5) -> TrainProgress:
    return TrainProgress(step, 100, 0, loss, loss, 1e-4, 2.0, 8.0, 49.0, 0.01, 1 << 20)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(RunPlaces(tmp_path / "runs", tmp_path / "loras", (tmp_path / "caches",)), LiveRuns())


def make_run(runs: Runs, name: str, **facts) -> Path:
    with open_run(runs.places.runs, name) as run:
        run.describe(**facts)
        with MetricsFile(run.metrics) as metrics:
            for step in range(1, 4):
                metrics.write(step=step, epoch=0, loss=1 / step, learning_rate=1e-4, waited=0.0, time=step)
    return run.folder


def test_a_live_run_shows_its_progress_and_its_node_only_to_its_page(runs: Runs):
    folder = make_run(runs, "cat", status="running", steps=100)
    with runs.live.running(LiveRun("cat", "7", "mine")) as live:
        live.update(progress(5))
        (row,) = runs.rows("mine")
        assert (row["status"], row["live"], row["node"], row["step"]) == ("running", True, "7", 5)
        assert row["samples_per_second"] == 8.0 and not row["stopping"]
        assert runs.rows("other")[0]["node"] is None and runs.rows()[0]["node"] is None
        assert runs.describe("cat", 50, 0.9)["curves"]["loss"][-1] == [5, 0.5]
        with pytest.raises(Refused, match="stop it first"), runs.unused("cat"):
            pass
        runs.live.stop("cat")
        assert live.stop.is_set() and runs.row(folder)["stopping"]
    with pytest.raises(Refused, match="not training on this server"):
        runs.live.stop("cat")
