"""Jobs: progress, problems, cancelling, and copies that leave nothing behind if they fail."""

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamcache.dataset_cache.format.manifest import read_manifest
from streamcache.nodes.library import open_caches
from streamcache.nodes.outside.untrusted import Refused
from streamcache.nodes.server import jobs
from streamcache.nodes.server.cache_view import close_views
from streamcache.nodes.server.jobs import Jobs, duplicating, exporting, verifying

from ...support.datasets import content, shard_files, write_set
from ...support.samples import write_cache


@pytest.fixture(autouse=True)
def nothing_open():
    yield
    open_caches.close_idle()
    close_views()


class Reports:
    """Collects the reports of jobs and waits for a job to end."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.over = threading.Event()
        self.jobs = Jobs(self)

    def __call__(self, job: dict[str, Any]) -> None:
        self.received.append(job)
        if job["state"] != "running":
            self.over.set()

    def run(self, *given: Any, **options: Any) -> dict[str, Any]:
        self.over.clear()
        self.jobs.start(*given, **options)
        assert self.over.wait(60)
        return self.received[-1]


class TestJobs:
    def test_an_intact_cache_verifies(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(jobs, "SECONDS_BETWEEN", 0.0)
        reports = Reports()
        job = reports.run("verify", "set", verifying(write_set(tmp_path / "set", range(5))))
        assert (job["state"], job["problems"], job["words"]) == ("done", [], "No problems found")
        assert job["done"] == job["total"] > 0 and job["ended"] >= job["began"]
        steps = [each["done"] for each in reports.received]
        assert steps == sorted(steps) and len(steps) > 5
        assert reports.jobs.rows() == [job]

    def test_damage_is_listed(self, tmp_path: Path):
        path = write_set(tmp_path / "set", range(5))
        shard_files(path)[0].unlink()
        job = Reports().run("verify", "set", verifying(path))
        assert job["state"] == "done" and job["problem_count"] >= len(job["problems"]) > 1
        assert {problem["kind"] for problem in job["problems"]} == {"missing"}

    def test_progress_is_reported_at_intervals(self, tmp_path: Path):
        reports = Reports()
        reports.run("verify", "set", verifying(write_set(tmp_path / "set", range(40))))
        assert len(reports.received) < 10

    @pytest.mark.parametrize(("work", "same_id"), [(duplicating, False), (exporting, True)])
    def test_a_copy_has_the_same_content(self, tmp_path: Path, platform: str, work: Callable, same_id: bool):
        path = write_set(tmp_path / "set", range(4))
        job = Reports().run("copy", "set", work(path, tmp_path / "group" / "copy", tmp_path), to="copy")
        assert job["state"] == "done" and job["to"] == "copy"
        copy = tmp_path / "group" / "copy"
        assert content(copy) == content(path)
        assert (read_manifest(path).id == read_manifest(copy).id) is same_id
        assert {each.name for each in tmp_path.iterdir()} == {"set", "group"}

    def test_a_cancelled_copy_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        path = write_set(tmp_path / "set", range(4))
        reports, started, go_on = Reports(), threading.Event(), threading.Event()

        def slowly(source: Path, target: Path, progress: Callable) -> None:
            target.mkdir()
            (target / "half").touch()
            started.set()
            assert go_on.wait(60)
            progress(1, 2)

        monkeypatch.setattr("streamcache.nodes.server.jobs.duplicate", slowly)
        number = reports.jobs.start("duplicate", "set", duplicating(path, tmp_path / "group" / "copy", tmp_path))["id"]
        assert started.wait(60)
        with pytest.raises(Refused, match="already running"):
            reports.jobs.start("duplicate", "set", duplicating(path, tmp_path / "group" / "copy", tmp_path))
        reports.jobs.cancel(number)
        go_on.set()
        assert reports.over.wait(60) and reports.received[-1]["state"] == "cancelled"
        assert [each.name for each in tmp_path.iterdir()] == ["set"]

    def test_another_copy_that_ends_meanwhile_is_no_error(self, tmp_path: Path, monkeypatch):
        gone = tmp_path / ".copy-just_ended"
        monkeypatch.setattr(Path, "glob", lambda path, pattern: [gone])
        jobs._remove_abandoned(tmp_path)

    def test_unfinished_copies_of_a_killed_server_are_removed_after_a_day(self, tmp_path: Path):
        path = write_set(tmp_path / "set", range(2))
        for name in (".copy-old", ".copy-new", ".copy-ahead"):
            (tmp_path / name).mkdir()
        os.utime(tmp_path / ".copy-old", (0, 0))
        os.utime(tmp_path / ".copy-ahead", (time.time() + 1e9,) * 2)
        assert Reports().run("duplicate", "set", duplicating(path, tmp_path / "copy", tmp_path))["state"] == "done"
        assert {each.name for each in tmp_path.iterdir()} == {"set", "copy", ".copy-new", ".copy-ahead"}
        # A date ahead counts as now, so that this one gets old too.
        assert (tmp_path / ".copy-ahead").stat().st_mtime < time.time() + 3600

    def test_a_failure_is_reported(self, tmp_path: Path):
        shutil.copytree(write_cache(tmp_path / "set", 1), tmp_path / "copy")
        job = Reports().run("duplicate", "set", duplicating(tmp_path / "set", tmp_path / "copy", tmp_path))
        assert job["state"] == "failed" and "taken" in job["error"]
        job = Reports().run("odd", "set", lambda watch: 1 // 0)
        assert job["state"] == "failed" and "ZeroDivisionError" in job["error"]

    def test_the_latest_jobs_are_listed_and_few_run_at_once(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(jobs, "MAX_LISTED", 3)
        reports = Reports()
        for n in range(6):
            reports.run("quick", str(n), lambda watch: "")
        assert [job["name"] for job in reports.jobs.rows()] == ["5", "4", "3"]
        go_on = threading.Event()
        for n in range(jobs.MAX_RUNNING):
            reports.jobs.start("slow", str(n), lambda watch: str(go_on.wait(60)))
        with pytest.raises(Refused, match="already running"):
            reports.jobs.start("slow", "one more", lambda watch: "")
        go_on.set()
        with pytest.raises(Refused, match="no such job"):
            reports.jobs.cancel("unknown")
