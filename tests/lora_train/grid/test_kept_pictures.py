"""Pictures that are kept with a run."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from streamcache.errors import TrainError
from streamcache.lora_train.grid import KeptPicture, KeptPictures, make_columns, make_rows, paint, to_image
from streamcache.lora_train.run import open_run

from ...support.odd_files import KINDS, put_odd, returns
from .pictures import SETTINGS, Counting, write_lora


@pytest.fixture
def kept(tmp_path: Path) -> KeptPictures:
    kept, lora = KeptPictures(tmp_path / "grid"), write_lora(tmp_path / "a.safetensors")
    rows = make_rows(["a cat", "a dog"], [1], "blurry")
    paint(Counting(), make_columns([lora], (1.0,), False), rows, SETTINGS, kept)
    return kept


def test_i2_the_index_tells_what_each_picture_shows(kept: KeptPictures):
    body = json.loads((kept.folder / "index.json").read_text())
    assert body["format"] == 1 and len(body["pictures"]) == 2
    row = next(iter(kept.rows().values()))
    assert (row.prompt, row.negative, row.seed, row.lora, row.name, row.strength) == (
        "a cat", "blurry", 1, "a.safetensors", "a", 1.0,
    )  # fmt: skip
    assert row.settings["steps"] == 2 and row.settings["width"] == 32
    assert Image.open(kept.folder / row.file).size == (32, 32)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"pictures": 7}', '{"pictures": [7, {"key": "../x"}]}'])
def test_i2_a_damaged_index_counts_as_empty(kept: KeptPictures, damage: str):
    (kept.folder / "index.json").write_text(damage)
    assert kept.rows() == {}


def test_i2_an_entry_cannot_name_a_file_elsewhere(kept: KeptPictures):
    body = json.loads((kept.folder / "index.json").read_text())
    body["pictures"][0]["file"] = "../../secret.png"
    body["pictures"][1]["key"] = "../../secret"
    (kept.folder / "index.json").write_text(json.dumps(body))
    assert [row.file for row in kept.rows().values()] == [f"{body['pictures'][0]['key']}.png"]


def test_i2_a_damaged_picture_counts_as_missing(kept: KeptPictures):
    first, second = kept.rows()
    assert kept.latents(first) is not None
    (kept.folder / f"{first}.safetensors").write_bytes(b"short")
    (kept.folder / f"{second}.png").unlink()
    assert kept.latents(first) is None and kept.latents(second) is None and kept.latents("0" * 32) is None


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and sockets")
@pytest.mark.parametrize("kind", KINDS)
def test_i2_latents_that_are_no_file_count_as_missing(kept: KeptPictures, kind: str):
    key = next(iter(kept.rows()))
    put_odd(kind, kept.folder / f"{key}.safetensors")
    assert returns(lambda: kept.latents(key)) is None


def test_i2_latents_that_are_too_large_count_as_missing(kept: KeptPictures, monkeypatch: pytest.MonkeyPatch):
    key = next(iter(kept.rows()))
    monkeypatch.setattr("streamcache.lora_train.grid.kept_pictures.MAX_LATENTS", 99)
    assert kept.latents(key) is None


def test_i2_a_run_that_was_deleted_meanwhile_does_not_come_back(tmp_path: Path):
    row = KeptPicture("0" * 32, f"{'0' * 32}.png", "x", "", 1, "", "", None, 0.0, {})
    with pytest.raises(TrainError, match="gone: the run was moved or deleted"):
        KeptPictures(tmp_path / "gone" / "grid").keep(row, torch.zeros(1, 4, 2, 2), torch.zeros(1, 8, 8, 3))
    assert not list(tmp_path.iterdir())


def test_i2_two_writers_lose_no_entry(tmp_path: Path):
    here, there = KeptPictures(tmp_path / "grid"), KeptPictures(tmp_path / "grid")
    for number, kept in enumerate((here, there, here, there)):
        row = KeptPicture(f"{number:032x}", f"{number:032x}.png", "x", "", 1, "", "", None, 0.0, {})
        kept.keep(row, torch.zeros(1, 4, 2, 2), torch.zeros(1, 8, 8, 3))
    assert len(here.rows()) == 4


def test_i2_a_picture_has_the_bytes_of_save_image():
    pixels = torch.rand(1, 8, 8, 3, generator=torch.Generator().manual_seed(1)) * 1.2 - 0.1
    saved = np.clip(255.0 * pixels[0].numpy(), 0, 255).astype(np.uint8)
    assert np.array_equal(np.asarray(to_image(pixels)), saved)


def test_i2_an_overwritten_run_drops_its_pictures(tmp_path: Path):
    with open_run(tmp_path, "cat") as run:
        run.describe(step=1)
    kept = KeptPictures(tmp_path / "cat" / "grid")
    row = KeptPicture("0" * 32, f"{'0' * 32}.png", "x", "", 1, "", "", None, 0.0, {})
    kept.keep(row, torch.zeros(1, 4, 2, 2), torch.zeros(1, 8, 8, 3))
    with open_run(tmp_path, "cat", "overwrite") as run:
        run.begin()
    assert kept.rows() == {}
