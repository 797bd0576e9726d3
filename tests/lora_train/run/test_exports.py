"""The LoRA files of a run: how they are named, listed and told apart."""

import json
from pathlib import Path

import pytest

from streamcache.lora_train.run.exports import (
    Export,
    export_path,
    export_step,
    find_exports,
    list_exports,
    missing_exports,
    superfluous,
)
from streamcache.lora_train.run.folder import open_run, partial_lora


def describe(root: Path, **facts) -> Path:
    with open_run(root / "runs", "cat") as run:
        run.describe(**{"status": "done", "step": 30, **facts})
        return run.folder


def entry(path: Path, step: int, **facts) -> dict:
    return {"file": path.name, "step": step, "epoch": 1, "loss": 0.5, "validation": None, **facts}


def test_i1_names_sort_by_step_whatever_the_number_of_steps() -> None:
    final = Path("loras/my_lora.safetensors")
    assert export_path(final, 500, 3000) == Path("loras/my_lora-000500.safetensors")
    names = [export_path(final, step, 2_000_000).name for step in (500, 90_000, 1_900_000)]
    assert names == sorted(names) and names[0] == "my_lora-0000500.safetensors"


def test_i1_files_are_listed_in_order_of_steps_with_the_final_one_last(tmp_path) -> None:
    final = tmp_path / "loras" / "cat.safetensors"
    along = [export_path(final, step, 30) for step in (10, 20)]
    final.parent.mkdir()
    for path in (final, *along):
        path.touch()
    entries = [entry(final, 30, epoch=3), entry(along[1], 20, loss=None), entry(along[0], 10, validation=0.25)]
    found = list_exports(describe(tmp_path, lora=str(final), exports=entries))
    assert found[0] == Export(along[0], 10, 1, 0.5, 0.25, False)
    assert [(one.path, one.step, one.epoch, one.loss) for one in found[1:]] == [
        (along[1], 20, 1, None),
        (final, 30, 3, 0.5),
    ]


def test_i1_a_running_run_lists_what_it_has_written_so_far(tmp_path) -> None:
    along = export_path(tmp_path / "cat.safetensors", 10, 30)
    along.touch()
    folder = describe(tmp_path, status="running", lora="", loras=str(tmp_path), exports=[entry(along, 10)])
    assert [one.path for one in list_exports(folder)] == [along]


def test_i1_a_missing_file_is_skipped_and_named(tmp_path) -> None:
    final = tmp_path / "cat.safetensors"
    final.touch()
    gone = export_path(final, 10, 30)
    folder = describe(tmp_path, lora=str(final), exports=[entry(gone, 10), entry(final, 30)])
    assert [one.step for one in list_exports(folder)] == [30] and missing_exports(folder) == [gone.name]


def test_i1_a_partial_file_is_told_from_its_name_and_its_run_is_of_any_version(tmp_path) -> None:
    partial = partial_lora(tmp_path / "cat.safetensors", 12)
    partial.touch()
    folder = describe(tmp_path, lora=str(partial), status="stopped", step=12)
    assert list_exports(folder) == [Export(partial, 12, 0, None, None, True)]
    final = tmp_path / "cat.safetensors"
    final.touch()
    described = json.loads((folder / "run.json").read_text()) | {"lora": str(final), "step": 30}
    (folder / "run.json").write_text(json.dumps(described))
    assert list_exports(folder) == [Export(final, 30, 0, None, None, False)]


@pytest.mark.parametrize(
    "entries",
    [
        "text",
        [1, None, {}, {"file": 3, "step": 1}, {"file": "a.safetensors"}, {"file": "a.safetensors", "step": -1}],
        [
            {"file": name, "step": 1}
            for name in ("../a.safetensors", "/a.safetensors", "C:a.safetensors", "a.png", "", "\0.safetensors")
        ],
        [{"file": "\ud800.safetensors", "step": 1}],
        [{"file": "a.safetensors", "step": True}, {"file": "a.safetensors", "step": 10**30}],
    ],
)
def test_i1_entries_that_no_run_would_write_are_skipped(tmp_path, entries) -> None:
    (tmp_path / "a.safetensors").touch()
    (tmp_path.parent / "a.safetensors").touch()
    folder = describe(tmp_path, lora="", loras=str(tmp_path), exports=entries)
    assert list_exports(folder) == [] and missing_exports(folder) == []


def test_i1_measurements_that_are_no_numbers_are_left_out(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    path.touch()
    odd = entry(path, 1, epoch="x", loss="nan", validation=[1])
    assert list_exports(describe(tmp_path, lora="", loras=str(tmp_path), exports=[odd])) == [
        Export(path, 1, 0, None, None, False)
    ]


@pytest.mark.parametrize("lora", ["\0", "\ud800", 3, ["a"], None])
def test_i1_a_path_that_no_run_would_record_is_none(tmp_path, lora) -> None:
    assert list_exports(describe(tmp_path, lora=lora)) == []


def test_i1_the_files_of_a_run_whose_folders_were_moved_are_found(tmp_path) -> None:
    final = tmp_path / "loras" / "cat.safetensors"
    along = export_path(final, 10, 30)
    final.parent.mkdir()
    for path in (final, along):
        path.touch()
    before = Path("/elsewhere/loras")
    folder = describe(tmp_path, lora=str(before / final.name), loras=str(before), exports=[entry(along, 10)])
    assert list_exports(folder) == [] and missing_exports(folder) == [along.name, final.name]
    assert [one.path for one in list_exports(folder, final.parent)] == [along, final]
    assert missing_exports(folder, final.parent) == []


def test_i1_of_equals_the_later_file_counts_as_better() -> None:
    exports = [Export(Path(f"{step}"), step, 0, None, loss, False) for step, loss in ((1, 0.5), (2, None), (3, 0.5))]
    assert [one.step for one in superfluous(exports, 1, "validation")] == [1, 2]
    assert [one.step for one in superfluous(exports, 1, "last")] == [2, 1]
    assert superfluous(exports, 0, "last") == []


def test_i1_files_of_other_runs_and_folders_are_not_those_of_a_run(tmp_path) -> None:
    for name in ("cat-000005", "cat-05", "cat-2-000005", "cats-000005", "cat-000005x", "cat-step00000005"):
        (tmp_path / f"{name}.safetensors").touch()
    final = tmp_path / "cat.safetensors"
    assert find_exports(final) == {5: tmp_path / "cat-000005.safetensors"}
    assert export_step(tmp_path / "other" / "cat-000005.safetensors", final) is None
    assert find_exports(tmp_path / "missing" / "cat.safetensors") == {}
