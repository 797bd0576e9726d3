"""Exports of trimmed text: other programs see whole tensors, and what comes back is trimmed as the cache was."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from streamcache.dataset_cache import CacheWriter, SampleFacts, export_as, import_cache, open_cache
from streamcache.dataset_cache.format import read_manifest

from ...support.padding import padded
from ...support.samples import bits, latent, same
from ..foreign.trainers import draw, musubi_latent, musubi_text
from .exports import assert_equal

COUNT = 5
SHAPE = (1, 64, 48)


def templated(i: int) -> torch.Tensor:
    """Rows that all captions begin with, then those of the caption."""
    return torch.cat([bits((1, 40, 48), torch.float32, 99), bits((1, 24, 48), torch.float32, i)], 1)


MAKE: dict[str, Callable[[int], torch.Tensor]] = {
    "equal rows": lambda i: padded(torch.bfloat16, SHAPE, "equal rows", i, 3 + i),
    "zeros with signs": lambda i: padded(torch.float32, SHAPE, "zeros with signs", i, 3 + i),
    "shared first rows": templated,
}


def text_of(kind: str, i: int) -> list[list[Any]]:
    tensor = MAKE[kind](i)
    return [[tensor, {"pooled_output": bits((1, 8), torch.float16, i), "again": (tensor, i, "word")}]]


def write(path: Path, kind: str, **options: Any) -> Path:
    with CacheWriter(path, **options) as writer:
        writer.put("empty", text_of(kind, 50), "conditioning")
        for i in range(COUNT):
            writer.put(f"latent {i}", latent(i), "latent")
            for variant in (i, 20 + i):
                writer.put(f"words {variant}", text_of(kind, variant), "conditioning")
            keys = {"latent": [f"latent {i}"], "conditioning": [f"words {i}", f"words {20 + i}"]}
            writer.sample(keys, SampleFacts(("one", "two"), f"{i}.png"))
        writer.name("empty caption", "empty")
    return path


def tensors_of(folder: Path, form: str) -> list[list[dict[str, torch.Tensor]]]:
    """The tensors of each sample's conditionings, as the packages of the formats read them."""
    if form == "webdataset":
        wds = pytest.importorskip("webdataset")
        load = safetensors.torch.load
        rows = wds.WebDataset(str(folder / "shard-000000.tar"), shardshuffle=False)
        return [[load(r["conditioning.safetensors"]), load(r["conditioning.1.safetensors"])] for r in rows]
    if form == "parquet":
        pq = pytest.importorskip("pyarrow.parquet")
        rows = pq.read_table(folder / "part-00000.parquet").to_pylist()
    else:
        datasets = pytest.importorskip("datasets")
        rows = datasets.load_dataset(str(folder), split="train", cache_dir=str(folder.parent / "hf"))
    return [[{part["name"]: _tensor(part) for part in words} for words in row["conditioning"]] for row in rows]


def _tensor(part: dict[str, Any]) -> torch.Tensor:
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[part["dtype"]]
    return torch.frombuffer(bytearray(part["data"]), dtype=dtype).reshape(part["shape"])


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("form", ["webdataset", "parquet", "hf"])
def test_f9_other_tools_see_whole_tensors_and_the_cache_comes_back(tmp_path, monkeypatch, form, kind):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    source = write(tmp_path / "set", kind)
    assert read_manifest(source).requires == ("padding",)
    export_as(source, tmp_path / "out", form)
    rows = tensors_of(tmp_path / "out", form)
    assert len(rows) == COUNT
    for i, row in enumerate(rows):
        for tensors, variant in zip(row, (i, 20 + i), strict=True):
            words, extras = text_of(kind, variant)[0]
            assert set(tensors) == {"0.0", "0.1.pooled_output"}, "nothing that only restores others"
            assert tensors["0.0"].shape == SHAPE and same(tensors["0.0"], words)
            assert same(tensors["0.1.pooled_output"], extras["pooled_output"])
    import_cache(tmp_path / "out", tmp_path / "back")
    assert_equal(source, tmp_path / "back")
    assert read_manifest(tmp_path / "back").requires == ("padding",)
    assert stored_bytes(tmp_path / "back") <= 1.05 * stored_bytes(source)


@pytest.mark.parametrize("form", ["webdataset", "parquet", "hf"])
def test_f9_a_cache_that_was_not_trimmed_comes_back_so(tmp_path, form):
    source = write(tmp_path / "set", "zeros with signs", trim=False)
    export_as(source, tmp_path / "out", form)
    import_cache(tmp_path / "out", tmp_path / "back")
    assert_equal(source, tmp_path / "back")
    assert read_manifest(tmp_path / "back").requires == ()


def test_f9_trimmed_and_whole_captions_may_be_mixed(tmp_path):
    write(tmp_path / "set", "equal rows", trim=False)
    with CacheWriter(tmp_path / "set", append=True) as writer:
        writer.add(latent(9), text_of("equal rows", 9), "three", "9.png")
    export_as(tmp_path / "set", tmp_path / "out", "webdataset")
    export_as(write(tmp_path / "whole", "equal rows", trim=False), tmp_path / "same", "webdataset")
    import_cache(tmp_path / "out", tmp_path / "back")
    assert_equal(tmp_path / "set", tmp_path / "back")
    read = lambda name: (tmp_path / name / "shard-000000.tar").read_bytes()  # noqa: E731
    assert read("out")[: len(read("same")) // 2] == read("same")[: len(read("same")) // 2]


def test_f9_text_of_another_trainer_is_trimmed(tmp_path):
    folder, wan, t5 = tmp_path / "wan", ("wan", "wan"), draw(7, 4096, dtype=torch.bfloat16)
    musubi_latent(folder, "one", wan, {"latents_1x8x8_float32": draw(16, 1, 8, 8)})
    musubi_text(folder, "one", wan, {"varlen_t5_bfloat16": t5})
    report = import_cache(folder, tmp_path / "set")
    assert not report.without
    with open_cache(tmp_path / "set", check=True) as cache:
        assert cache.manifest.requires == ("padding",)
        text = cache[0].realize().conditioning[0][0]
        assert text.shape == (1, 512, 4096) and torch.equal(text[0, :7], t5) and not text[0, 7:].any()
    before = read_manifest(tmp_path / "set").generation
    import_cache(folder, tmp_path / "set")
    assert read_manifest(tmp_path / "set").generation == before, "the same keys"


def stored_bytes(path: Path) -> int:
    return sum(shard["bytes"] for shard in json.loads((path / "dataset.json").read_text())["shards"])
