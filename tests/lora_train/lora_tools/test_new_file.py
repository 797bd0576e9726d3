"""The file that a tool writes: where it may be written, and what is said about it."""

from pathlib import Path

import pytest
import torch

from streamcache.errors import TrainError
from streamcache.lora_train.lora_tools.new_file import NewLayer, NewLora, describe_numbers


def test_other_endings_and_folders_are_refused_before_any_work(tmp_path: Path):
    (tmp_path / "folder.safetensors").mkdir()
    for name, words in (("a.pt", "ends in .safetensors"), ("folder.safetensors", "exists")):
        with pytest.raises(TrainError, match=words):
            NewLora(tmp_path / name, overwrite=True)


def test_a_kept_tensor_is_a_copy(tmp_path: Path):
    new, tensor = NewLora(tmp_path / "a.safetensors"), torch.zeros(3)
    new.add("x", tensor)
    tensor += 1
    assert not new.tensors["x"].any()


def test_the_report_weighs_layers_by_the_size_of_their_change(tmp_path: Path):
    new = NewLora(tmp_path / "a.safetensors")
    new.add("x", torch.zeros(3))
    new.layers += [NewLayer("a", "LoRA", (8,), 4, 0.5, 3.0), NewLayer("b", "LoHa", (), 4, 1.0, 1.0)]
    report = new.write({})
    assert report.kept == pytest.approx(0.625)
    lines = report.lines()
    assert "Kept energy: 62.50% of the squared norm; least 50.00% in a" in lines and "Rank: 8 → 4" in lines


def test_numbers_are_described_by_their_range():
    assert [describe_numbers(n) for n in ([], [4, 4], [4, 16, 16])] == ["none", "4", "4–16, mostly 16"]
