"""A folder for the Hugging Face Hub: `datasets.load_dataset` reads it, with the types that the card states."""

import re
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import export_as, open_cache

from ...support.samples import same
from .exports import write_plain_cache, write_rich_cache


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`load_dataset` without the network, with a cache of its own."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")

    def load(path: Path, **options):
        return datasets.load_dataset(str(path), split="train", cache_dir=str(tmp_path / "hf"), **options)

    return load


def test_f9_load_dataset_reads_the_folder(tmp_path: Path, load):
    cache = open_cache(write_plain_cache(tmp_path / "set"))
    export_as(tmp_path / "set", tmp_path / "out", "hf")
    rows = load(tmp_path / "out")
    assert len(rows) == 7 and rows.column_names[:4] == ["index", "source", "caption", "captions"]
    for i in (0, 3, 6):
        part = rows[i]["latent"][0][0]
        own = cache[i].realize().latent["samples"]
        assert same(torch.frombuffer(bytearray(part["data"]), dtype=own.dtype).reshape(part["shape"]), own)
        assert rows[i]["caption"] == cache[i].caption
    streamed = next(iter(load(tmp_path / "out", streaming=True)))
    assert streamed["latent"][0][0]["name"] == "samples"


def test_f9_odd_names_of_fields_and_variants_are_read_too(tmp_path: Path, load):
    write_rich_cache(tmp_path / "set")
    export_as(tmp_path / "set", tmp_path / "out", "hf")
    row = load(tmp_path / "out")[1]
    assert len(row["latent"]) == 2 and "field source" in row


def test_f9_the_code_in_the_card_runs(tmp_path: Path, load, monkeypatch: pytest.MonkeyPatch):
    write_plain_cache(tmp_path / "set")
    export_as(tmp_path / "set", tmp_path / "out", "hf")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", card, re.S | re.M)
    values: dict = {}
    exec(code.replace("this folder or repository", (tmp_path / "out").as_posix()), values)
    assert same(values["tensor"], open_cache(tmp_path / "set")[0].realize().latent["samples"])
