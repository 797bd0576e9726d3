"""LoRA files along the way: when they are written, that they disturb nothing, which stay, what is refused before."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from streamcache.errors import TrainError
from streamcache.lora_train import exporter, session
from streamcache.lora_train.config import TrainConfig
from streamcache.lora_train.loop import TrainHooks
from streamcache.lora_train.run.exports import list_exports, missing_exports
from streamcache.lora_train.run.folder import open_run
from streamcache.lora_train.run.metrics import read_curves
from streamcache.lora_train.run.smoothing import smooth_curve
from streamcache.lora_train.session import open_session

from ..support.small_parts import SmallDenoiser, make_dataset, run_training
from .short_runs import FULL, assert_same_state, last_state, losses

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("runs/test")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / FOLDER).glob("*.safetensors"))


def steps(folder: Path) -> list[int]:
    return [export.step for export in list_exports(folder / FOLDER)]


def assert_same_files(one: Path, other: Path) -> None:
    assert names(one) == names(other)
    for name in names(one):
        a, b = (load_file(folder / FOLDER / name) for folder in (one, other))
        assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a), name


def stop_at(step: int) -> TrainHooks:
    at = [0]
    return TrainHooks(progress=lambda progress: at.__setitem__(0, progress.step), stop=lambda: at[0] >= step)


def test_i1_a_file_every_n_steps_is_listed_with_its_measurements(tmp_path) -> None:
    told = []
    settings = {"steps": 10, "export_every": 4, "validation_share": 0.2, "validation_every": 100}
    hooks = TrainHooks(exported=told.append)
    result = run_training(tmp_path, make_dataset(tmp_path / "set"), hooks=hooks, **settings)
    assert names(tmp_path) == ["test-000004.safetensors", "test-000008.safetensors", "test.safetensors"]
    found, curves = list_exports(tmp_path / FOLDER), read_curves(tmp_path / FOLDER / "metrics.jsonl")
    assert [one.step for one in found] == [4, 8, 10] and found[-1].path == result.lora and found[:2] == told
    assert [one.path for one in told] == list(result.exports) and result.missing == ()
    shown = smooth_curve([loss for _, loss in curves.losses], 0.98)
    assert [one.loss for one in found] == [shown[3], shown[7], shown[9]]
    assert [one.validation for one in found] == [dict(curves.validation)[step] for step in (4, 8, 10)]
    assert [one.epoch for one in found] == [0, 1, 2]  # an epoch has 5 batches
    assert not any(one.partial for one in found)
    report = (tmp_path / FOLDER / "report.html").read_text(encoding="utf-8")
    assert f"test-000004.safetensors</td><td>step 4, loss {shown[3]:.4f}, validation loss " in report


def test_i1_a_file_every_n_epochs_also_where_accumulated_steps_go_over_the_end(tmp_path) -> None:
    run_training(tmp_path, make_dataset(tmp_path / "set"), epochs=4, accumulate=4, export_epochs=1)
    found = list_exports(tmp_path / FOLDER)  # 24 batches, 4 per step: epochs end in steps 2, 3, 5 and 6
    assert [(one.step, one.epoch) for one in found] == [(2, 1), (3, 2), (5, 3), (6, 4)]


@pytest.mark.parametrize("settings", [{"ema_decay": 0.9}, {"optimizer": "AdamWScheduleFree"}, {"adapter_dropout": 0.3}])
def test_i1_a_file_along_the_way_is_that_of_a_run_that_ends_there_and_changes_nothing(tmp_path, settings) -> None:
    if "optimizer" in settings:
        pytest.importorskip("schedulefree")
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path / "plain", dataset, steps=8, **settings)
    run_training(tmp_path / "short", dataset, steps=3, **settings)
    run_training(tmp_path / "along", dataset, steps=8, export_every=3, **settings)
    assert_same_state(last_state(tmp_path / "plain"), last_state(tmp_path / "along"))
    assert losses(tmp_path / "plain") == losses(tmp_path / "along")
    ended, along = (load_file(tmp_path / part) for part in ("short/runs/test/test.safetensors",
                                                            "along/runs/test/test-000003.safetensors"))  # fmt: skip
    assert all(torch.equal(ended[key], along[key]) for key in ended)


KILLED = """
import os, signal, sys
root, folder, step = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.path.insert(0, root)
import tests.conftest
from pathlib import Path
from tests.lora_train.short_runs import FULL
from tests.support.small_parts import TrainHooks, run_training
from streamcache.dataset_cache import open_cache
def kill(progress):
    if progress.step == step:
        os.kill(os.getpid(), signal.SIGKILL)
mode = "resume" if (Path(folder) / "runs/test").exists() else "new"
dataset = open_cache(Path(folder).parent / "set")
run_training(Path(folder), dataset, hooks=TrainHooks(progress=kill), mode=mode, export_every=4, **FULL)
"""


@pytest.mark.skipif(os.name != "posix", reason="kills a process with SIGKILL")
def test_i1_a_kill_after_an_export_and_a_resume_before_it_write_the_same_files_again(tmp_path) -> None:
    make_dataset(tmp_path / "set")

    def child(folder: str, step: int) -> int:
        command = [sys.executable, "-c", KILLED, str(ROOT), str(tmp_path / folder), str(step)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, capture_output=True, timeout=600, env=environment).returncode

    assert child("whole", -1) == 0
    assert child("killed", 14) == -signal.SIGKILL  # after the file of step 12, with the state of step 10
    assert steps(tmp_path / "killed") == [4, 8, 12]
    assert child("killed", -1) == 0
    assert_same_files(tmp_path / "whole", tmp_path / "killed")
    facts = [json.loads((tmp_path / part / FOLDER / "run.json").read_text())["exports"] for part in ("whole", "killed")]
    assert facts[0] == facts[1] and [fact["step"] for fact in facts[0]] == [4, 8, 12, 16, 20]
    assert_same_state(last_state(tmp_path / "whole"), last_state(tmp_path / "killed"))


def test_i1_entries_after_the_resumed_step_are_dropped(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path, dataset, steps=12, export_every=2, save_every=5, keep_states=9)
    for step in (10, 12):
        (tmp_path / FOLDER / f"states/step-{step:08}.safetensors").unlink()
    run_training(tmp_path, dataset, hooks=TrainHooks(stop=lambda: True), mode="resume", steps=12, export_every=2)
    assert steps(tmp_path) == [2, 4, 5] and len(names(tmp_path)) == 7  # those of later steps are there, unlisted
    run_training(tmp_path, dataset, mode="resume", steps=12, export_every=2)
    assert steps(tmp_path) == [2, 4, 6, 8, 10, 12]


def test_i1_a_file_that_a_kill_after_its_state_has_prevented_is_written_at_the_resume(tmp_path) -> None:
    dataset, along = make_dataset(tmp_path / "set"), tmp_path / FOLDER / "test-000004.safetensors"
    run_training(tmp_path, dataset, hooks=stop_at(4), steps=8, export_every=4)
    before = load_file(along)
    along.unlink()
    run_training(tmp_path, dataset, mode="resume", steps=8, export_every=4)
    assert steps(tmp_path) == [4, 8] and all(torch.equal(load_file(along)[key], before[key]) for key in before)


def test_i1_an_interrupted_run_marks_its_file_in_name_list_and_metadata(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    result = run_training(tmp_path, dataset, hooks=stop_at(5), steps=12, export_every=2)
    last = list_exports(tmp_path / FOLDER)[-1]
    assert last.path == result.lora and last.partial and last.step == 5
    with safe_open(result.lora, "pt") as file:
        found = file.metadata()
    assert found["streamcache.partial"] == "step 5 of 12"
    assert found["modelspec.title"] == "test-step00000005 (step 5 of 12)"
    result = run_training(tmp_path, dataset, mode="resume", steps=12, export_every=2)
    assert steps(tmp_path) == [2, 4, 6, 8, 10, 12] and "test-step00000005.safetensors" not in names(tmp_path)
    for path in (result.lora, *result.exports):
        with safe_open(path, "pt") as file:
            assert "streamcache.partial" not in file.metadata()


def test_i1_only_the_last_k_stay_and_never_a_file_of_others(tmp_path) -> None:
    dataset, folder = make_dataset(tmp_path / "set"), tmp_path / FOLDER
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    (folder / "test-000007.safetensors").write_bytes(b"mine")  # the name of a step without a file
    run_training(tmp_path, dataset, steps=12, export_every=2, keep_exports=2)
    assert steps(tmp_path) == [8, 10, 12]
    assert (folder / "test-000007.safetensors").read_bytes() == b"mine"
    assert names(tmp_path) == [f"test-0000{step}.safetensors" for step in ("07", "08", "10")] + ["test.safetensors"]


def test_i1_the_best_k_by_validation_stay_and_always_the_final_one(tmp_path) -> None:
    settings = {"steps": 30, "learning_rate": 1.0, "optimizer": "SGD", "validation_share": 0.2}
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path / "all", dataset, export_every=3, **settings)
    everything = list_exports(tmp_path / "all" / FOLDER)[:-1]
    best = sorted(sorted(everything, key=lambda one: one.validation or 0)[:3], key=lambda one: one.step)
    assert [one.step for one in best] == [3, 6, 9]  # the rate is far too high: it diverges
    best_three = {"keep_exports": 3, "keep_exports_by": "validation"}
    result = run_training(tmp_path / "best", dataset, export_every=3, **best_three, **settings)
    found = list_exports(tmp_path / "best" / FOLDER)
    assert [(one.step, one.validation) for one in found[:-1]] == [(one.step, one.validation) for one in best]
    assert found[-1].path == result.lora and len(names(tmp_path / "best")) == 4


def test_i1_the_best_by_validation_needs_held_out_samples() -> None:
    with pytest.raises(TrainError, match="no samples are held out; set validation_share"):
        TrainConfig(keep_exports=2, keep_exports_by="validation")


def test_i1_files_that_would_fill_the_disk_are_refused_before_the_first_step(tmp_path) -> None:
    dataset, denoiser = make_dataset(tmp_path / "set"), SmallDenoiser()
    many = (
        r"export_every = 1: 1,000,000,000,000 LoRA files of 328 bytes are 328 TB, and the disk of .* has .* free; set "
    )
    many += r"keep_exports = \d+ or less, or a longer interval$"
    with pytest.raises(TrainError, match=many):
        run_training(tmp_path, dataset, denoiser, steps=10**12, export_every=1)
    assert not denoiser.calls and not (tmp_path / FOLDER).exists()
    with pytest.raises(
        TrainError, match=r"export_epochs = 1: .*; set keep_exports = \d+ or less, or a longer interval$"
    ):
        run_training(tmp_path, dataset, denoiser, epochs=10**12, export_epochs=1)
    with pytest.raises(TrainError, match="keep_exports = "):
        run_training(tmp_path, dataset, denoiser, steps=10**12, export_every=1, keep_exports=10**11)
    run_training(tmp_path, dataset, steps=10**12, export_every=1, keep_exports=2, hooks=stop_at(3))
    assert steps(tmp_path) == [2, 3, 3]


def test_i1_the_forecast_counts_files_of_the_size_that_is_written(tmp_path) -> None:
    for dtype in ("fp32", "bf16"):
        folder = tmp_path / dtype
        result = run_training(folder, make_dataset(folder / "set"), adapter="lokr", save_dtype=dtype, rank=4)
        with open_run(folder / "runs", "other") as run:
            config = TrainConfig(adapter="lokr", save_dtype=dtype, rank=4)
            session = open_session(SmallDenoiser(), make_dataset(folder / "other"), config, run)
        tensors = load_file(result.lora).values()
        size = exporter.file_bytes(session.network, exporter.DTYPES[dtype])
        assert abs(size - sum(value.nbytes for value in tensors)) <= 4 * len(tensors)


def test_i1_a_new_run_overwrites_no_file_and_a_run_that_is_overwritten_takes_its_files_along(tmp_path) -> None:
    dataset, folder = make_dataset(tmp_path / "set"), tmp_path / FOLDER
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    (folder / "test-000004.safetensors").write_bytes(b"mine")
    with pytest.raises(TrainError, match=r"test-000004.safetensors would be overwritten by this run; give it another"):
        run_training(tmp_path, dataset, export_every=2)
    assert names(tmp_path) == ["test-000004.safetensors"]
    run_training(tmp_path, dataset, export_every=3, steps=12)  # no file of step 4
    assert (folder / "test-000004.safetensors").read_bytes() == b"mine"
    run_training(tmp_path, dataset, mode="overwrite", export_every=5, steps=12)
    assert steps(tmp_path) == [5, 10, 12]
    assert names(tmp_path)[:-1] == [f"test-{step:06}.safetensors" for step in (4, 5, 10)]


def test_i1_a_run_that_begins_to_write_files_when_it_resumes_overwrites_none(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path, dataset, hooks=stop_at(3), steps=8)
    mine = tmp_path / FOLDER / "test-000006.safetensors"
    mine.write_bytes(b"mine")
    with pytest.raises(TrainError, match="test-000006.safetensors would be overwritten"):
        run_training(tmp_path, dataset, mode="resume", steps=8, export_every=2)
    mine.unlink()
    for stop in (5, 4, 9):  # the second time from before the file of step 4, which is its own
        run_training(tmp_path, dataset, hooks=stop_at(stop), mode="resume", steps=8, export_every=2)
        for state in (tmp_path / FOLDER / "states").glob("*"):
            if stop == 5 and state.name != "step-00000003.safetensors":
                state.unlink()
    assert steps(tmp_path) == [4, 6, 8]


def test_i1_files_of_a_run_that_was_deleted_are_not_overwritten_by_one_that_got_its_name(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path, dataset, hooks=stop_at(3), steps=8, export_every=2)
    run_json, final = tmp_path / FOLDER / "run.json", tmp_path / FOLDER / "test.safetensors"
    run_json.write_text(run_json.read_text().replace('"test-', '"before-').replace("/test-", "/before-"))
    final.write_bytes(b"mine")
    with pytest.raises(TrainError, match=r": test\.safetensors would be overwritten by this run"):
        run_training(tmp_path, dataset, mode="resume", steps=8)
    final.unlink()
    (final.with_name("test-000006.safetensors")).write_bytes(b"mine")
    for mode in ("resume", "overwrite"):
        with pytest.raises(TrainError, match="test-000006.safetensors would be overwritten"):
            run_training(tmp_path, dataset, mode=mode, steps=8, export_every=2)
    assert final.with_name("test-000006.safetensors").read_bytes() == b"mine"


def test_i1_a_run_knows_its_files_of_later_steps_whatever_its_settings_were_in_between(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path, dataset, steps=8, export_every=3, save_every=1, keep_states=9)
    for every, stop in ((0, 3), (3, 9)):  # the second time from before the file of step 6
        for step in range(3, 9):
            (tmp_path / FOLDER / f"states/step-{step:08}.safetensors").unlink(missing_ok=True)
        run_training(tmp_path, dataset, hooks=stop_at(stop), mode="resume", steps=8, export_every=every)
    assert steps(tmp_path) == [3, 6, 8]
    run_training(tmp_path, dataset, mode="overwrite", steps=8)
    assert names(tmp_path) == ["test.safetensors"]


def test_i1_a_missing_file_is_named_and_no_error(tmp_path, caplog) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path, dataset, hooks=stop_at(5), steps=8, export_every=2)
    (tmp_path / FOLDER / "test-000002.safetensors").unlink()
    result = run_training(tmp_path, dataset, mode="resume", steps=8, export_every=2)
    assert "are missing: test-000002.safetensors" in caplog.text and result.missing == ("test-000002.safetensors",)
    assert steps(tmp_path) == [4, 6, 8] and missing_exports(tmp_path / FOLDER) == ["test-000002.safetensors"]


def test_i1_a_file_that_cannot_be_written_does_not_end_the_run(tmp_path, caplog) -> None:
    dataset, folder = make_dataset(tmp_path / "set"), tmp_path / FOLDER

    def put_in_the_way(progress) -> None:
        if progress.step == 1:
            (folder / "test-000002.safetensors").mkdir()
            (folder / "test-000002.safetensors" / "x").touch()

    run_training(tmp_path, dataset, hooks=TrainHooks(progress=put_in_the_way), steps=6, export_every=2)
    assert "The LoRA of step 2 could not be saved" in caplog.text and steps(tmp_path) == [4, 6]


def test_i4_each_file_has_the_latest_sample_image_beside_it(tmp_path) -> None:
    dataset, folder = make_dataset(tmp_path / "set"), tmp_path / FOLDER
    settings = {"steps": 9, "export_every": 2, "sample_every": 3, "sample_steps": 1, "keep_exports": 2}
    run_training(tmp_path, dataset, **settings)
    pictures = sorted(path.name for path in folder.glob("*.preview.png"))
    assert pictures == ["test-000006.preview.png", "test-000008.preview.png", "test.preview.png"]
    for name, step in (("test-000008", 6), ("test", 9)):
        with (
            Image.open(folder / f"{name}.preview.png") as one,
            Image.open(folder / f"samples/step-{step:08}-0.png") as other,
        ):
            assert one.tobytes() == other.tobytes()


def test_i4_a_picture_that_someone_chose_stays_and_an_unfinished_file_takes_its_own_along(tmp_path) -> None:
    dataset, folder = make_dataset(tmp_path / "set"), tmp_path / FOLDER
    settings = {"steps": 6, "sample_every": 2, "sample_steps": 1}
    run_training(tmp_path, dataset, hooks=stop_at(3), **settings)
    assert (folder / "test-step00000003.preview.png").exists()
    Image.new("RGB", (8, 8), "red").save(folder / "test.preview.png")
    run_training(tmp_path, dataset, mode="resume", **settings)
    with Image.open(folder / "test.preview.png") as picture:
        assert picture.getpixel((0, 0)) == (255, 0, 0)
    assert not (folder / "test-step00000003.preview.png").exists()


def test_i4_without_sample_images_there_is_no_preview(tmp_path) -> None:
    run_training(tmp_path, make_dataset(tmp_path / "set"), export_every=2)
    assert not list((tmp_path / FOLDER).glob("*.preview.png"))


def test_i1_resuming_with_more_steps_keeps_the_files_from_before(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path / "one", dataset, steps=6, export_every=2)
    shutil.copytree(tmp_path / "one", tmp_path / "two")  # moved: the files are beside the LoRA that run.json names
    run_training(tmp_path / "one", dataset, mode="resume", steps=12, export_every=4)
    assert steps(tmp_path / "one") == [2, 4, 8, 12]


def test_full_settings_are_those_of_the_kill_above() -> None:
    assert FULL["steps"] == 20 and FULL["save_every"] == 10 and FULL["ema_decay"]


def test_i4_captions_are_counted_before_the_first_step_and_once(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, counted, real = [0], [], session.count_tags
    monkeypatch.setattr(session, "count_tags", lambda dataset: counted.append(done[0]) or real(dataset))
    hooks = TrainHooks(progress=lambda progress: done.__setitem__(0, progress.step))
    run_training(tmp_path, make_dataset(tmp_path / "set"), hooks=hooks, steps=4, export_every=2)
    assert counted == [0]
