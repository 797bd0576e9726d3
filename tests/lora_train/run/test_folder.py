"""A run's folder: its name, its modes, and one trainer at a time."""

import pytest

from streamcache.lora_train.errors import TrainError
from streamcache.lora_train.run.folder import open_run, read_run_json


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
        assert sorted(path.name for path in run.folder.iterdir()) == [".lock", "notes.txt", "run.json"]
        assert not run.resume and "status" not in read_run_json(run.folder)


@pytest.mark.parametrize("mode", ["overwrite", "resume"])
def test_a_folder_without_a_run_is_left_alone(tmp_path, mode: str) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").touch()
    with pytest.raises(TrainError, match="photos: not the folder of a run"), open_run(tmp_path, "photos", mode):
        pass
    assert (tmp_path / "photos" / "a.png").exists()


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", "/etc", "C:\\x", "a\\b", " a", "a.", "x" * 200, "~a", "a?b", "💀" * 100]
)
def test_an_invalid_folder_name_is_refused(tmp_path, name: str) -> None:
    with pytest.raises(TrainError, match="expected a plain folder name"), open_run(tmp_path, name):
        pass


def test_a_second_trainer_of_the_same_run_is_refused(tmp_path) -> None:
    refused = pytest.raises(TrainError, match="another process is training this run")
    with open_run(tmp_path, "cat", "resume"), refused, open_run(tmp_path, "cat", "resume"):
        pass
