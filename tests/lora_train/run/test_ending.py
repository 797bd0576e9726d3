"""A run that ended stays as it was if going on with it fails before its next step."""

from pathlib import Path
from typing import Any

import pytest

from streamcache.errors import TrainError
from streamcache.lora_train.loop import TrainHooks
from streamcache.lora_train.run.folder import read_run_json

from ...support.small_parts import SmallDenoiser, make_dataset, run_training


class Skipping(SmallDenoiser):
    """Never calls one of its layers, which is noticed in the first step."""

    def predict(self, x_t: Any, t: Any, conditioning: Any) -> Any:
        return self.layers["down"](self.layers["up"](x_t.movedim(1, -1))).movedim(-1, 1)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize("ended", ["done", "stopped"])
def test_a_resume_that_is_refused_in_its_first_step_changes_nothing(tmp_path: Path, ended: str):
    dataset, settings = make_dataset(tmp_path / "set"), {"targets": "all", "validation_share": 0.1, "sample_every": 4}
    stop = iter([False, False, ended == "stopped", True])
    run_training(tmp_path, dataset, hooks=TrainHooks(stop=lambda: next(stop, False)), steps=3, **settings)
    assert read_run_json(tmp_path / "runs/test")["status"] == ended
    before = contents(tmp_path / "runs")
    with pytest.raises(TrainError, match="never called in training"):
        run_training(tmp_path, dataset, Skipping(), mode="resume", accept_changes=True, steps=9, **settings)
    assert contents(tmp_path / "runs") == before


def test_a_resume_that_fails_later_is_recorded(tmp_path: Path):
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path, dataset, steps=3)

    def fail(progress: Any) -> None:
        raise ValueError("the page is gone")

    with pytest.raises(ValueError, match="gone"):
        run_training(tmp_path, dataset, hooks=TrainHooks(fail), mode="resume", accept_changes=True, steps=9)
    described = read_run_json(tmp_path / "runs/test")
    assert described["status"] == "failed" and described["problem"] == "ValueError: the page is gone"
    assert described["step"] > 3 and f"step{described['step']:08}" in described["lora"]
