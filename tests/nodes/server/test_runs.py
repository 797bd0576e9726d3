"""Runs on pages: status and progress of each, and names and files that cannot point elsewhere."""

import errno
import json
import os
import time
from pathlib import Path

import filelock
import pytest

from streamcache.errors import TrainError
from streamcache.lora_train.run.folder import LOCK, open_run
from streamcache.lora_train.run.metrics import MetricsFile
from streamcache.nodes.outside.untrusted import Refused
from streamcache.nodes.server.live_runs import LiveRun, LiveRuns
from streamcache.nodes.server.runs import RunPlaces, Runs

from ...support.odd_files import KINDS, make_unreadable, put_odd, returns


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(RunPlaces(tmp_path / "runs", tmp_path / "loras", (tmp_path / "caches",)), LiveRuns())


def make_run(runs: Runs, name: str, **facts) -> Path:
    mode = "resume" if (runs.places.runs / name).exists() else "new"
    with open_run(runs.places.runs, name, mode) as run:
        run.describe(**facts)
        with MetricsFile(run.metrics) as metrics:
            for step in range(1, 4):
                metrics.write(step=step, epoch=0, loss=1 / step, learning_rate=1e-4, waited=0.0, time=step)
    return run.folder


def use(runs: Runs, name: str) -> None:
    with runs.unused(name):
        pass


def test_a_run_whose_process_died_is_interrupted_and_a_locked_one_is_running(runs: Runs):
    folder = make_run(runs, "cat", status="running", steps=9)
    assert (runs.row(folder)["status"], runs.row(folder)["step"]) == ("interrupted", 3)
    with filelock.FileLock(folder / LOCK):
        assert runs.row(folder)["status"] == "running" and not runs.row(folder)["live"]
        with pytest.raises(Refused, match="stop it first"):
            use(runs, "cat")
    use(runs, "cat")


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


def test_the_lora_of_a_stopped_run_is_the_one_of_its_step(runs: Runs):
    runs.places.loras.mkdir()
    make_run(runs, "cut", status="stopped", step=12)
    for step in (3, 12):
        (runs.places.loras / f"cut-step{step:08}.safetensors").touch()
    assert runs.rows()[0]["lora"] == runs.describe("cut", 50, 0)["lora"] == "cut-step00000012.safetensors"
    (runs.places.loras / "cut.safetensors").touch()
    assert runs.rows()[0]["lora"] == "cut.safetensors"


@pytest.mark.parametrize("folder", ["loras", "elsewhere"])  # ComfyUI may have been moved
def test_the_lora_of_a_run_is_the_one_that_it_wrote_last(runs: Runs, tmp_path: Path, folder: str):
    runs.places.loras.mkdir()
    partial = "cat-step00000012.safetensors"
    for name in ("cat.safetensors", partial):  # finished once, then continued and stopped
        (runs.places.loras / name).touch()
    make_run(runs, "cat", status="stopped", step=12, lora=str(tmp_path / folder / partial))
    assert runs.rows()[0]["lora"] == runs.describe("cat", 50, 0)["lora"] == partial
    for recorded in ("", "gone.safetensors", "..", 7, None):
        make_run(runs, "cat", lora=recorded)
        assert runs.rows()[0]["lora"] == ("" if isinstance(recorded, str) else "cat.safetensors")


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


def test_the_memory_forecast_of_a_run_is_told(runs: Runs):
    make_run(runs, "cat", memory={"forecast": {"peak": 7}, "problem": ""})
    make_run(runs, "dog")
    assert (
        runs.describe("cat", 50, 0)["memory"]["forecast"] == {"peak": 7} and runs.describe("dog", 50, 0)["memory"] == {}
    )


def test_i3_the_prompts_of_the_sample_images_are_told(runs: Runs):
    make_run(runs, "cat", prompts=["a cat", "x" * 3000])
    make_run(runs, "dog", prompts="not a list")
    told = runs.describe("cat", 50, 0)["prompts"]
    assert told[0] == "a cat" and len(told[1]) == 2000 and runs.describe("dog", 50, 0)["prompts"] == []


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


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and sockets")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_file_in_a_run_neither_blocks_a_page_nor_breaks_it(runs: Runs, kind: str):
    folder = make_run(runs, "cat", status="running", step=1, steps=9)
    lora = runs.places.loras / "cat.safetensors"
    state = folder / "states" / "step-00000002.safetensors"
    picture = folder / "samples" / "step-00000001-0.png"
    for path in (folder / "metrics.jsonl", folder / "report.html", state, picture, lora):
        put_odd(kind, path)
    row = returns(runs.rows)[0]
    assert (row["status"], row["step"], row["saved_step"], row["lora"]) == ("interrupted", 1, 0, "")
    detail = returns(lambda: runs.describe("cat", 100, 0.9))
    assert detail["curves"]["loss"] == [] and detail["samples"] == [] and detail["report"] == ""
    for read in (lambda: runs.report("cat"), lambda: runs.sample("cat", picture.name)):
        with pytest.raises(Refused) if kind != "device" else pytest.raises(ValueError, match="leads out of"):
            returns(read)
    put_odd(kind, folder / "run.json")
    assert returns(runs.rows) == []
    with pytest.raises(Refused, match="no such run"):
        returns(lambda: runs.describe("cat", 100, 0.9))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("part", ["run.json", "states"])
def test_a_run_that_cannot_be_read_now_is_listed_with_the_reason(runs: Runs, number: int, part: str, monkeypatch):
    make_run(runs, "dog", status="done", step=3)
    folder = make_run(runs, "cat", status="running", steps=9)
    (folder / "states").mkdir()
    make_unreadable(monkeypatch, folder / part, number)
    rows = {row["name"]: row for row in runs.rows()}
    assert rows["dog"]["status"] == "done"
    assert rows["cat"]["status"] == "failed" and os.strerror(number) in rows["cat"]["problem"]
    with runs.live.running(LiveRun("cat")):
        assert runs.row(folder)["status"] == "running" and runs.row(folder)["problem"] == ""


def test_curves_that_cannot_be_read_now_are_an_error_and_not_empty(runs: Runs, monkeypatch):
    folder = make_run(runs, "cat", status="done", step=3)
    with monkeypatch.context() as patch:
        make_unreadable(patch, folder / "metrics.jsonl", errno.EIO)
        with pytest.raises(TrainError, match=r"metrics\.jsonl: .*try again"):
            runs.describe("cat", 100, 0.9)
        assert runs.row(folder)["step"] == 3
    assert len(runs.describe("cat", 100, 0.9)["curves"]["loss"]) == 3


NFC, NFD = "\u00e9t\u00e9", "e\u0301te\u0301"


def test_a_run_and_its_lora_are_found_in_another_unicode_form(runs: Runs):
    make_run(runs, NFD, status="done", step=3)
    runs.places.loras.mkdir()
    (runs.places.loras / f"{NFC}.safetensors").touch()
    detail = runs.describe(NFC, 100, 0.9)
    assert (detail["run"]["name"], detail["lora"]) == (NFD, f"{NFC}.safetensors") and detail["curves"]["loss"]
    with runs.live.running(LiveRun(NFD)):
        assert runs.describe(NFC, 100, 0.9)["run"]["live"]
        with pytest.raises(Refused, match="stop it first"):
            use(runs, NFC)
    use(runs, NFC)


def test_dates_in_the_future_count_as_now(runs: Runs):
    folder = make_run(runs, "future", status="done", step=3)
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**facts, "updated": time.time() + 1e9}))
    os.utime(folder / "metrics.jsonl", (time.time() + 1e9,) * 2)
    before = time.time()
    (row,) = runs.rows()
    assert before - 1 <= row["updated"] <= time.time() + 1 and row["status"] == "done"


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != LOCK}


def test_tags_and_comment_are_kept_and_leave_the_rest_of_a_run_as_it_was(runs: Runs):
    folder = make_run(runs, "cat", status="done", step=3, more=[1])
    before = json.loads((folder / "run.json").read_text())
    assert (runs.row(folder)["tags"], runs.row(folder)["comment"]) == ([], ""), "old runs have none"
    runs.label("cat", [" best ", "best", "", "sharp"], " good hands ")
    after = json.loads((folder / "run.json").read_text())
    assert after == {**before, "tags": ["best", "sharp"], "comment": "good hands"}
    assert (runs.row(folder)["tags"], runs.row(folder)["comment"]) == (["best", "sharp"], "good hands")
    for bad in (["x" * 41], [str(number) for number in range(21)]):
        with pytest.raises(Refused, match="at most 20 tags"):
            runs.label("cat", bad, "")
    (folder / "run.json").write_text("{")
    with pytest.raises(Refused, match="damaged"):
        runs.label("cat", [], "")
    (folder / "run.json").write_text('{"tags": [3, "' + "y" * 90 + '"], "comment": 5}')
    assert [len(tag) for tag in runs.row(folder)["tags"]] == [40], "also if someone else wrote them"


def test_a_run_that_trains_is_not_changed(runs: Runs):
    folder = make_run(runs, "cat", status="running", steps=9)
    before = files_of(folder)
    with filelock.FileLock(folder / LOCK):
        for change in (lambda: runs.label("cat", ["x"], ""), lambda: runs.rename("cat", "dog")):
            with pytest.raises(Refused, match="stop it first"):
                change()
    assert files_of(folder) == before


def test_a_renamed_run_keeps_its_lora_and_its_place_in_the_list(runs: Runs):
    runs.places.loras.mkdir()
    for name in ("old", "new"):
        (runs.places.loras / f"{name}.safetensors").touch()
    folder = make_run(runs, "old", status="done", step=3)  # of an earlier version: its LoRA is not recorded
    before = runs.row(folder)
    renamed = runs.rename("old", "kitten")
    assert runs.rows() == [{**before, "name": "kitten"}] and before["lora"] == "old.safetensors"
    assert json.loads((renamed / "run.json").read_text())["name"] == "kitten" and not folder.exists()
    make_run(runs, "taken")
    for bad in ("taken", "../x", "", "nul", "x" * 200):
        with pytest.raises(ValueError):
            runs.rename("kitten", bad)
    assert {row["name"] for row in runs.rows()} == {"kitten", "taken"}


@pytest.mark.parametrize("left", ["cat.safetensors", "cat-000500.safetensors"])
def test_i1_a_run_does_not_get_the_name_of_a_lora_of_another(runs: Runs, left: str):
    loras = runs.places.loras
    loras.mkdir()
    make_run(runs, "dog", status="done", step=3, lora=str(loras / "dog.safetensors"))
    (loras / left).touch()  # of a run that was deleted
    with pytest.raises(Refused, match=f"the LoRA {left} of another run exists"):
        runs.rename("dog", "cat")
    make_run(runs, "dog", lora=str(loras / "cat.safetensors"), written=["cat-000500.safetensors"], loras=str(loras))
    assert runs.rename("dog", "cat").name == "cat", "its own name from before"


def test_only_the_lora_files_of_a_run_are_sent(runs: Runs, tmp_path: Path):
    loras = runs.places.loras
    loras.mkdir()
    for name in ("cat-000002", "cat", "dog"):
        (loras / f"{name}.safetensors").touch()
    entry = {"file": "cat-000002.safetensors", "step": 2, "epoch": 0, "loss": 0.5, "validation": None}
    away = {**entry, "file": "../secret.safetensors"}
    moved = tmp_path / "before" / "cat.safetensors"  # where ComfyUI was when the run trained
    make_run(runs, "cat", step=3, lora=str(moved), loras=str(moved.parent), exports=[away, entry])
    (tmp_path / "secret.safetensors").touch()
    described = runs.describe("cat", 50, 0)
    assert [(row["file"], row["step"], row["loss"], row["partial"]) for row in described["exports"]] == [
        ("cat-000002.safetensors", 2, 0.5, False),
        ("cat.safetensors", 3, None, False),
    ]
    assert runs.lora("cat", "cat-000002.safetensors") == loras / "cat-000002.safetensors"
    for other in ("dog.safetensors", "../secret.safetensors", "", "run.json"):
        with pytest.raises(Refused, match="no LoRA file"):
            runs.lora("cat", other)
    (loras / "cat.safetensors").unlink()
    (loras / "cat.safetensors").symlink_to(tmp_path / "secret.safetensors")
    with pytest.raises(ValueError, match="leads out of"):
        runs.lora("cat", "cat.safetensors")


def test_the_stamp_changes_with_a_run_and_only_then(runs: Runs):
    stamps = [runs.stamp()]
    folder = make_run(runs, "cat", status="running")
    stamps.append(runs.stamp())
    with open(folder / "metrics.jsonl", "a") as file:
        file.write("\n")
    stamps.append(runs.stamp())
    runs.rename("cat", "dog")
    stamps.append(runs.stamp())
    assert len(set(stamps)) == 4 and runs.stamp() == stamps[-1]


def test_a_run_has_the_captions_of_its_sample_images(runs: Runs):
    make_run(runs, "cat", prompts=["a cat", "x" * 5000])
    make_run(runs, "old", config={"sample_captions": ["a dog"]})
    assert [len(prompt) for prompt in runs.describe("cat", 50, 0)["prompts"]] == [5, 2000]
    assert runs.describe("old", 50, 0)["prompts"] == ["a dog"], "earlier versions stored only those that were chosen"
