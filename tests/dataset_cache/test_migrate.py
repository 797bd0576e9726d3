"""Formats: a golden dataset of every released one opens and gives exactly what was stored; newer ones are refused."""

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamcache.dataset_cache import CacheError, CacheWriter, migrate, open_cache, realize, register_codec
from streamcache.dataset_cache.format import tensors
from streamcache.dataset_cache.format.manifest import FORMAT, read_manifest, write_manifest
from streamcache.dataset_cache.upkeep import verify

from ..support import golden
from ..support.datasets import listing, write_set

FOLDER = Path(__file__).resolve().parents[1] / "golden"
FORMATS = sorted(folder.name for folder in FOLDER.glob("format-*"))


@pytest.fixture(params=FORMATS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A copy, since readers leave leases beside what they read."""
    register_codec(golden.CODEC)
    yield Path(shutil.copytree(FOLDER / request.param, tmp_path / "golden"))
    del tensors._by_name[golden.CODEC.name], tensors._by_type[golden.CODEC.type]


def same(found: Any, expected: Any) -> bool:
    """Equal in structure, types, order, and every bit."""
    if type(found) is not type(expected):
        return False
    if isinstance(expected, torch.Tensor):
        alike = found.dtype == expected.dtype and found.shape == expected.shape
        return alike and bytes_of(found) == bytes_of(expected)
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, golden.Rope):
        return same(found.strands, expected.strands)
    if isinstance(expected, float):
        return math.copysign(1, found) == math.copysign(1, expected) and (found == expected or found != found)
    if isinstance(expected, np.generic):
        return found.dtype == expected.dtype and found == expected
    return found == expected


def bytes_of(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


def check_content(path: Path) -> None:
    cache = open_cache(path, check=True)
    assert len(cache) == 5 and cache.provenance == golden.PROVENANCE and cache.sets == golden.SETS
    for i in range(5):
        about, sample = vars(golden.facts(i)), cache[i]
        texts = about.pop("captions")
        assert sample.captions == ((texts,) if isinstance(texts, str) else tuple(texts))
        assert {name: getattr(sample, name) for name in about} == about
        expected = golden.fields(i)
        assert set(sample.fields) == set(expected)
        for name, variants in expected.items():
            assert cache.variants(name)[i] == len(variants)
            for number, (key, structure) in enumerate(variants):
                assert same(realize(cache.sample(i, {name: number}).fields[name]), structure), (i, name)
                assert same(realize(cache.entry(key)), structure)
    assert same(realize(cache.entry(cache.named[golden.NAMED])), golden.caption(""))
    assert same(realize(cache.entry("unused")), golden.latent(9))
    assert [(bucket.shape, bucket.dtype) for bucket in cache.buckets()] == [
        ((4, 8, 8), torch.float16),
        ((4, 8, 16), torch.float16),
        ((16, 3, 4, 4), torch.bfloat16),
    ]


def test_a22_every_released_format_has_a_golden_dataset():
    assert [f"format-{number}" for number in range(1, FORMAT + 1)] == [name for name in FORMATS if name[-1].isdigit()]
    assert "format-1-segments" in FORMATS


def test_a22_a_golden_dataset_returns_exactly_the_stored_data(path: Path):
    check_content(path)
    assert list(verify(path)) == []
    batch = open_cache(path, check=True).read_batch([0, 3], fields=["latent", "conditioning"])
    assert torch.equal(
        batch.latents.view(torch.uint8), torch.cat([golden.latent(i)["samples"] for i in (0, 3)]).view(torch.uint8)
    )


def test_a22_shared_tensors_are_shared_after_reading(path: Path):
    shared = open_cache(path)[0].realize().fields["other things"]["shared"]
    assert shared[0] is shared[1][0]


def test_a22_migrating_encodes_nothing_and_is_idempotent(path: Path):
    migrate(path)
    before, generation = listing(path), read_manifest(path).generation
    assert migrate(path) is False
    assert listing(path) == before and read_manifest(path).generation == generation
    check_content(path)
    with CacheWriter(path, append=True) as writer:
        keys = [key for i in range(5) for variants in golden.fields(i).values() for key, _ in variants]
        assert all(writer.has(key) for key in [*keys, "unused", "nothing"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "needs format 2, but this StreamCache reads format 1; update StreamCache"),
        ({"requires": ["time travel"]}, "needs the features .*time travel.*; update StreamCache"),
        ({"format": 0}, "invalid format 0"),
        ({"format": "1"}, "invalid format '1'"),
        ({"format": True}, "invalid format True"),
    ],
)
def test_a22_an_unknown_format_is_refused_everywhere(tmp_path: Path, change: dict, message: str):
    path = write_set(tmp_path / "set", range(2))
    body = json.loads((path / "dataset.json").read_bytes())
    (path / "dataset.json").write_text(json.dumps({**body, **change}))
    before = listing(path)
    for use in (open_cache, CacheWriter, migrate):
        with pytest.raises(CacheError, match=message):
            use(path)
    assert [problem.place for problem in verify(path)] == ["dataset.json"] and listing(path) == before


def test_f10_the_golden_dataset_of_trimmed_text_returns_exactly_the_stored_data(tmp_path: Path):
    path = Path(shutil.copytree(FOLDER / "padding", tmp_path / "golden"))
    cache = open_cache(path, check=True)
    assert cache.manifest.requires == ("padding",) and list(verify(path)) == []
    for i in range(9):
        assert same(realize(cache[i].conditioning), golden.trimmed_caption(i))
    batch = cache.read_batch(range(9), buffers=cache.buffers(9))
    assert same(batch.conditionings, [golden.trimmed_caption(i) for i in range(9)])


def test_keys_of_a_later_version_survive_a_rewrite(tmp_path: Path):
    path = write_set(tmp_path / "set", range(2))
    manifest = read_manifest(path)
    later = replace(manifest, extra={"mood": {"of": ["a", 1]}})
    (path / manifest.index_name).rename(path / later.index_name)
    write_manifest(path, later)
    write_set(path, [2], append=True)
    assert read_manifest(path).extra == {"mood": {"of": ["a", 1]}}


def test_an_unpublished_cache_has_nothing_to_migrate(tmp_path: Path):
    (tmp_path / "set").mkdir()
    with pytest.raises(CacheError, match="nothing has been published"):
        migrate(tmp_path / "set")
    assert list((tmp_path / "set").iterdir()) == []
