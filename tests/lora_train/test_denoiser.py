"""The example of a denoiser in docs/training.md: it really trains."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from streamcache.lora_train import Denoiser, read_curves
from tests.support.small_parts import make_dataset

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "training.md"


def example() -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return next(block for block in blocks if "class MyDenoiser" in block)


def test_the_documented_denoiser_trains_a_lora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_dataset(tmp_path / "my_set")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(example(), str(DOCUMENT), "exec"), names)
    result = names["result"]
    assert result.step == 20 and not result.stopped
    losses = [loss for _, loss in read_curves(tmp_path / "runs" / "my_run" / "metrics.jsonl").losses]
    assert len(losses) == 20 and len(set(losses)) > 10
    # Up starts at zero: what is not zero was trained.
    ups = {name: value for name, value in load_file(result.lora).items() if name.endswith("lora_up.weight")}
    assert len(ups) == 3 and all(value.abs().max() > 0 for value in ups.values())


def test_the_documented_denoiser_fulfils_the_protocol_in_about_45_lines(tmp_path, monkeypatch) -> None:
    make_dataset(tmp_path / "my_set")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(example(), str(DOCUMENT), "exec"), names)
    denoiser = names["MyDenoiser"](names["MyModel"]())
    assert isinstance(denoiser, Denoiser)
    assert denoiser.sample([[torch.zeros(1, 5, 6), {}]], (4, 8, 8), seed=1, steps=2).shape == (1, 4, 8, 8)
    lines = example().partition("class MyDenoiser")[2].partition("\nwith ")[0].splitlines()
    assert len([line for line in lines if line.strip()]) <= 45
