"""The pictures of a run's grid on pages."""

import json
from pathlib import Path

import pytest
import torch

from streamcache.lora_train import KeptPicture, KeptPictures
from streamcache.nodes.outside import Refused
from streamcache.nodes.server.grid_view import list_pictures, read_picture

KEY = "0123456789abcdef" * 2


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with one picture."""
    folder = tmp_path / "cat"
    folder.mkdir()
    row = KeptPicture(KEY, f"{KEY}.png", "a cat", "", 2**63, "cat-000500.safetensors", "cat", 500, 0.6, {"steps": 2})
    KeptPictures(folder / "grid").keep(row, torch.zeros(1, 4, 2, 2), torch.zeros(1, 16, 16, 3))
    return folder


def test_i2_the_pictures_of_a_run_are_listed_and_served(run: Path):
    (row,) = list_pictures(run)
    assert (row["prompt"], row["seed"], row["name"], row["step"], row["strength"]) == (
        "a cat", str(2**63), "cat", 500, 0.6,
    )  # fmt: skip
    json.dumps(row, allow_nan=False)
    found = read_picture(run, row["file"])
    assert found.data == (run / "grid" / row["file"]).read_bytes() and found.mtime == row["mtime"]
    assert list_pictures(run.with_name("dog")) == []


def test_a_picture_that_is_gone_is_not_listed(run: Path):
    (run / "grid" / f"{KEY}.png").unlink()
    assert list_pictures(run) == []
    with pytest.raises(Refused, match="has no picture"):
        read_picture(run, f"{KEY}.png")


@pytest.mark.parametrize("file", ["../run.json", "index.json", f"{KEY}.safetensors", f"../{KEY}.png", ""])
def test_only_pictures_are_served(run: Path, file: str):
    with pytest.raises(Refused, match="expected"):
        read_picture(run, file)


def test_a_link_out_of_the_folder_is_refused(run: Path, tmp_path: Path):
    (tmp_path / "secret.png").write_bytes(b"secret")
    (run / "grid" / f"{KEY}.png").unlink()
    (run / "grid" / f"{KEY}.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(ValueError, match="leads out of"):
        read_picture(run, f"{KEY}.png")


def test_an_index_from_elsewhere_is_cut(run: Path):
    index = run / "grid" / "index.json"
    body = json.loads(index.read_text())
    body["pictures"][0] |= {"prompt": "x" * 3000, "step": -5, "settings": {"a": "x" * 3000}}
    index.write_text(json.dumps(body))
    (row,) = list_pictures(run)
    assert len(row["prompt"]) == len(row["settings"]["a"]) == 2000 and row["step"] == 0


@pytest.mark.parametrize("strength", ["1" * 400, "NaN", "1e999"])
def test_a_picture_of_a_strength_that_is_no_number_is_not_listed(run: Path, strength: str):
    index = run / "grid" / "index.json"
    index.write_text(index.read_text().replace('"strength": 0.6', f'"strength": {strength}'))
    assert list_pictures(run) == []
