"""The columns of a grid."""

import json
from pathlib import Path

import pytest

from streamcache.errors import SettingError, TrainError
from streamcache.lora_train.grid import Column, choose_exports, describe_missing, make_columns


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with the LoRA files of three steps."""
    folder, loras = tmp_path / "runs" / "cat", tmp_path / "loras"
    folder.mkdir(parents=True)
    loras.mkdir()
    names = {"cat-000500.safetensors": 500, "cat-001000.safetensors": 1000, "cat.safetensors": 1200}
    for name in names:
        (loras / name).touch()
    exports = [
        {"file": name, "step": step, "epoch": 1, "loss": 0.1, "validation": None} for name, step in names.items()
    ]
    described = {"lora": str(loras / "cat.safetensors"), "step": 1200, "exports": exports}
    (folder / "run.json").write_text(json.dumps(described))
    return folder


def test_i2_a_run_gives_its_exports(run: Path):
    assert [column.step for column in choose_exports(run)] == [500, 1000, 1200]
    assert [column.step for column in choose_exports(run, "last")] == [1200]
    assert [column.step for column in choose_exports(run, "1000, 500")] == [1000, 500]
    assert choose_exports(run, "500")[0].label == "cat step 500 × 1"


def test_i2_a_step_without_a_file_is_refused_with_those_there_are(run: Path):
    with pytest.raises(TrainError, match="cat has no LoRA of step 700; it has 500, 1,000, 1,200"):
        choose_exports(run, "700")
    with pytest.raises(SettingError, match="exports"):
        choose_exports(run, "best")


def test_i2_a_lora_that_is_gone_is_named_and_one_that_is_asked_for_is_refused(run: Path):
    assert describe_missing(run) == []
    (run.parents[1] / "loras" / "cat-000500.safetensors").unlink()
    for wanted in ("all", "last", ""):
        assert describe_missing(run, wanted) == ["cat: 1 LoRA files are missing: cat-000500.safetensors"]
    assert [column.step for column in choose_exports(run)] == [1000, 1200] and describe_missing(run, "1000") == []
    with pytest.raises(TrainError, match=r"of step 500 of cat is missing \(cat-000500.safetensors\); there is 1,000"):
        choose_exports(run, "500")


def test_i2_a_run_without_a_lora_is_refused(tmp_path: Path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(TrainError, match="has no LoRA file"):
        choose_exports(tmp_path)


def test_i2_every_lora_has_a_column_per_strength_and_zero_is_the_base():
    loras = [Column(Path("a.safetensors"), 1.0, "a"), Column(Path("b.safetensors"), 1.0, "b", 7)]
    columns = make_columns(loras, (0.6, 1.0), base=True)
    assert [column.label for column in columns] == [
        "without LoRA", "a × 0.6", "a × 1", "b step 7 × 0.6", "b step 7 × 1",
    ]  # fmt: skip
    assert make_columns(loras, (0.0, 1.0, 1.0), base=False)[0].file is None
    assert len(make_columns([*loras, *loras], (0.0, 1.0), base=True)) == 3
    with pytest.raises(TrainError, match="no columns"):
        make_columns([], (1.0,), base=False)
