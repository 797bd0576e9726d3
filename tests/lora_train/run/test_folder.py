"""A run's folder: its name, its modes, and one trainer at a time."""

import errno
import json
import os
import re
import time
from pathlib import Path

import pytest

from streamcache.dataset_cache import replace_file
from streamcache.errors import TrainError
from streamcache.lora_train.run import folder as run_folder
from streamcache.lora_train.run.folder import is_run_locked, latest_run, open_run, partial_lora, read_run_json

from ...support.odd_files import KINDS, make_unreadable, put_odd, returns


def begin(root, name: str, **facts) -> None:
    with open_run(root, name) as run:
        run.describe(**{"status": "done", "step": 3, **facts})


def test_new_takes_the_next_free_name_and_resume_takes_the_old_one(tmp_path) -> None:
    for expected in ("cat", "cat-2", "cat-3"):
        with open_run(tmp_path, "cat", "new") as run:
            run.describe(status="running", step=3)
            assert run.name == expected and not run.resume
    with open_run(tmp_path, "cat", "resume") as run:
        assert run.name == "cat" and not run.resume  # nothing was saved: it starts at step 0
        (run.folder / "states").mkdir()
        (run.folder / "states" / "step-00000003.safetensors").write_bytes(b"")
    with open_run(tmp_path, "cat", "resume") as run:
        assert run.resume


def test_overwrite_removes_what_a_run_wrote_and_nothing_else(tmp_path) -> None:
    with open_run(tmp_path, "cat") as run:
        run.describe(status="done")
        (run.folder / "states").mkdir()
        (run.folder / "states" / "step-00000001.safetensors").touch()
        (run.folder / "notes.txt").write_text("mine")
        run.lora.touch()
    with open_run(tmp_path, "cat", "overwrite") as run:
        assert (run.folder / "states" / "step-00000001.safetensors").exists()  # until it begins
        run.describe()
        assert sorted(path.name for path in run.folder.iterdir()) == [".lock", "notes.txt", "run.json"]
        assert not run.resume and "status" not in read_run_json(run.folder)


@pytest.mark.parametrize("mode", ["overwrite", "resume"])
def test_a_folder_without_a_run_is_left_alone(tmp_path, mode: str) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").touch()
    with pytest.raises(TrainError, match="photos: not the folder of a run"), open_run(tmp_path, "photos", mode):
        pass
    assert (tmp_path / "photos" / "a.png").exists()


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc", "C:\\x", "a\\b", " a", "a.", "~a", "a?b"])
def test_an_invalid_folder_name_is_refused(tmp_path, name: str) -> None:
    with pytest.raises(TrainError, match="expected a plain folder name"), open_run(tmp_path, name):
        pass


def test_a_second_trainer_of_the_same_run_is_refused(tmp_path) -> None:
    refused = pytest.raises(TrainError, match="another process is training this run")
    begin(tmp_path, "cat")
    with open_run(tmp_path, "cat", "resume"), refused, open_run(tmp_path, "cat", "resume"):
        pass


@pytest.mark.parametrize("name", ["x" * 121, "x" * 200, "画" * 78, "💀" * 100])
def test_a_name_that_is_too_long_is_refused_as_such(tmp_path, name: str) -> None:
    for mode in ("new", "resume", "overwrite"):
        refused = pytest.raises(
            TrainError, match=f"too long .{len(name)} characters, .* bytes in UTF-8.; give a shorter"
        )
        with refused, open_run(tmp_path, name, mode):
            pass


def test_a_run_whose_name_is_too_long_for_new_runs_can_be_resumed(tmp_path) -> None:
    """Earlier versions allowed it."""
    name = "画" * 75
    for mode in ("new", "overwrite"):
        with pytest.raises(TrainError, match="too long"), open_run(tmp_path, name, mode):
            pass
    with pytest.raises(TrainError, match="has no run"), open_run(tmp_path, name, "resume"):
        pass
    (tmp_path / name).mkdir()
    (tmp_path / name / "run.json").write_text('{"step": 3}')
    for mode in ("resume", "overwrite"):
        with open_run(tmp_path, name, mode) as run:
            run.describe(status="running")
            assert run.name == name


@pytest.mark.skipif(os.name != "posix", reason="only there are markers used")
def test_the_marker_of_a_run_on_a_drive_without_file_locks_is_named(tmp_path, monkeypatch) -> None:
    import fcntl

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    begin(tmp_path, "cat")
    marker = tmp_path / "cat" / ".lock.held"
    marker.write_text("another-host 77 1")  # left by a process that was killed there
    words = f"another process is training this run; wait for it, or if none is, remove {re.escape(str(marker))}$"
    with pytest.raises(TrainError, match=words), open_run(tmp_path, "cat", "resume"):
        pass
    marker.unlink()
    with open_run(tmp_path, "cat", "resume") as run:
        assert run.name == "cat"


def test_the_length_of_a_name_is_limited_in_bytes(tmp_path):
    """The LoRA has the run's name, an ending, and while it is written the marks of a temporary file."""
    with open_run(tmp_path, "画" * 72) as run:
        run.begin()
        replace_file(partial_lora(run.lora, 99_999_999), b"x")
    with pytest.raises(TrainError, match="too long"), open_run(tmp_path, "画" * 78):
        pass


def test_resuming_an_unknown_name_is_refused_with_the_near_or_the_latest_names(tmp_path) -> None:
    with pytest.raises(TrainError, match='has no run "cat". To start one'), open_run(tmp_path, "cat", "resume"):
        pass
    for updated, name in enumerate(("bird", "my_cat", "my_dog", "fish")):
        begin(tmp_path, name)
        (tmp_path / name / "run.json").write_text(json.dumps({"updated": updated}))
    with pytest.raises(TrainError, match='did you mean "my_cat"'), open_run(tmp_path, "my_cta", "resume"):
        pass
    with pytest.raises(TrainError, match="the latest runs are fish, my_dog, my_cat"), open_run(tmp_path, "x", "resume"):
        pass
    assert not (tmp_path / "x").exists() and not (tmp_path / "my_cta").exists()


def test_an_opened_run_creates_nothing_before_it_begins(tmp_path) -> None:
    with open_run(tmp_path / "runs", "cat") as run:
        assert not (tmp_path / "runs").exists()
        run.describe(status="running")
        assert read_run_json(run.folder)["status"] == "running" and is_run_locked(run.folder)
    assert not is_run_locked(run.folder)


def test_two_new_runs_that_begin_at_once_do_not_share_a_folder(tmp_path) -> None:
    with open_run(tmp_path, "cat") as first, open_run(tmp_path, "cat") as second:
        first.describe(status="running")
        with pytest.raises(TrainError, match="another process"):
            second.describe(status="running")
        assert read_run_json(first.folder)["status"] == "running"


def test_a_run_that_ended_before_its_first_step_gives_its_name_back(tmp_path) -> None:
    begin(tmp_path, "cat", status="failed", step=0)
    with open_run(tmp_path, "cat") as run:
        assert run.name == "cat"
        run.describe(status="running")
        assert "step" not in read_run_json(run.folder)
        with open_run(tmp_path, "cat") as other:  # it is being trained
            assert other.name == "cat-2"


@pytest.mark.parametrize("found", [True, False])
def test_a_run_that_another_process_trained_meanwhile_is_not_cleared(tmp_path, monkeypatch, found) -> None:
    if found:
        begin(tmp_path, "cat", status="failed", step=0)
    lock = run_folder._locked

    def late(path: Path):
        replace_file(path / "run.json", b'{"status": "done", "step": 5}')  # and its lock is free again
        return lock(path)

    monkeypatch.setattr(run_folder, "_locked", late)
    refused = pytest.raises(TrainError, match="another process has just used this name; start again")
    with refused, open_run(tmp_path, "cat") as run:
        run.describe(status="running")
    assert read_run_json(tmp_path / "cat") == {"status": "done", "step": 5}


def test_a_new_run_may_take_an_empty_folder(tmp_path) -> None:
    (tmp_path / "cat").mkdir()
    for _ in range(2):  # the first one is not begun, and leaves at most its lock
        with open_run(tmp_path, "cat") as run:
            assert run.name == "cat"


def test_the_latest_of_several_runs_with_one_name_is_found(tmp_path) -> None:
    assert latest_run(tmp_path, "cat") is None
    for name, updated in (("cat", 5), ("cat-2", 9), ("cat-10", 9), ("cat-x", 99), ("category", 99)):
        begin(tmp_path, name)
        (tmp_path / name / "run.json").write_text(json.dumps({"updated": updated}))
    assert latest_run(tmp_path, "cat") == "cat-10"
    (tmp_path / "cat" / "run.json").write_text('{"updated": 10}')
    assert latest_run(tmp_path, "cat") == "cat"
    (tmp_path / "cat" / "run.json").write_text('{"updated": "never"}')
    assert latest_run(tmp_path, "cat") == "cat-10"


def with_state(root, name: str):
    """A run with a saved state."""
    begin(root, name)
    (root / name / "states").mkdir()
    (root / name / "states" / "step-00000003.safetensors").write_bytes(b"state")
    return root / name


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("part", ["cat", "cat/run.json", "cat/states", "."])
def test_a_run_that_cannot_be_read_now_is_not_started_again(tmp_path, number: int, part: str, monkeypatch) -> None:
    folder = with_state(tmp_path, "cat")
    with monkeypatch.context() as patch:
        make_unreadable(patch, tmp_path / part, number)
        for mode in ("resume", "overwrite") if part != "cat/states" else ("resume",):
            with pytest.raises(TrainError, match=os.strerror(number)), open_run(tmp_path, "cat", mode):
                pass
        if part != ".":
            with pytest.raises(TrainError, match=os.strerror(number)):
                latest_run(tmp_path, "cat") if part != "cat/states" else open_run(tmp_path, "cat", "resume").__enter__()
            with open_run(tmp_path, "cat", "new") as run:
                assert run.name == "cat-2"
    assert read_run_json(folder)["step"] == 3 and (folder / "states" / "step-00000003.safetensors").exists()


def test_notes_survive_if_run_json_cannot_be_read_for_a_moment(tmp_path, monkeypatch) -> None:
    begin(tmp_path, "cat", notes="mine")
    with open_run(tmp_path, "cat", "resume") as run:
        with monkeypatch.context() as patch:
            make_unreadable(patch, run.folder / "run.json", errno.EIO)
            with pytest.raises(TrainError, match="run.json"):
                run.describe(status="running")
        assert read_run_json(run.folder)["notes"] == "mine"


def test_a_full_disk_is_a_refusal_that_names_run_json(tmp_path, monkeypatch) -> None:
    with open_run(tmp_path, "cat") as run:
        run.begin()
        monkeypatch.setattr(os, "fsync", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(TrainError, match=r"run\.json: .*No space left"):
            run.describe(status="running")


def test_a_folder_that_cannot_be_locked_is_refused_with_the_reason(tmp_path, monkeypatch) -> None:
    begin(tmp_path, "cat")
    make_unreadable(monkeypatch, tmp_path / "cat" / ".lock", errno.EROFS)
    with pytest.raises(TrainError, match=os.strerror(errno.EROFS)), open_run(tmp_path, "cat", "resume"):
        pass


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and sockets")
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_whose_run_json_is_not_a_file_is_not_a_run(tmp_path, kind: str) -> None:
    put_odd(kind, tmp_path / "cat" / "run.json")
    put_odd(kind, tmp_path / "cat" / "metrics.jsonl")
    assert returns(lambda: read_run_json(tmp_path / "cat")) == {}
    assert returns(lambda: latest_run(tmp_path, "cat")) is None
    for mode in ("resume", "overwrite"):
        with pytest.raises(TrainError, match="not the folder of a run"):
            returns(open_run(tmp_path, "cat", mode).__enter__)
    with open_run(tmp_path, "cat", "new") as run:
        assert run.name == "cat-2"


NFC, NFD = "\u00e9t\u00e9", "e\u0301te\u0301"


def test_a_run_is_resumed_by_another_unicode_form_of_its_name(tmp_path) -> None:
    begin(tmp_path, NFD)
    for mode in ("resume", "overwrite"):
        with open_run(tmp_path, NFC, mode) as run:
            assert run.folder == tmp_path / NFD
    with open_run(tmp_path, NFC, "new") as run:
        assert run.name == f"{NFC}-2"
        run.describe(status="done", step=3)
    assert latest_run(tmp_path, NFC) == f"{NFC}-2" == latest_run(tmp_path, NFD)


def test_a_date_in_the_future_does_not_make_a_run_the_latest_for_ever(tmp_path) -> None:
    for name in ("cat", "cat-2", "cat-3"):
        begin(tmp_path, name)
    for name, updated in (("cat", time.time() + 1e6), ("cat-2", 5.0), ("cat-3", 3.0)):
        (tmp_path / name / "run.json").write_text(json.dumps({"updated": updated}))
    assert latest_run(tmp_path, "cat") == "cat-3", "if a date cannot be right, the numbers decide"
    (tmp_path / "cat" / "run.json").write_text(json.dumps({"updated": 4.0}))
    assert latest_run(tmp_path, "cat") == "cat-2"
