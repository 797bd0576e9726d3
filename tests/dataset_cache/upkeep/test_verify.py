"""verify reports damaged and missing data, down to the sample, and debris."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamcache.dataset_cache import CacheError, CacheWriter, Problem, open_cache
from streamcache.dataset_cache.format.manifest import read_manifest
from streamcache.dataset_cache.upkeep import verify

from ...support.datasets import (
    SHARED,
    blob_place,
    flip,
    forge,
    latent,
    listing,
    shard_files,
    write_set,
)

pytestmark = pytest.mark.usefixtures("platform")


def check(path: Path, kind: str | None = None) -> list[Problem]:
    return [problem for problem in verify(path) if kind in (None, problem.kind)]


def samples(problems: list[Problem]) -> set[int | None]:
    return {problem.sample for problem in problems}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_set(tmp_path / "my set ünï", range(5))


def test_an_intact_cache_has_no_problems(path: Path):
    before = listing(path)
    steps: list[tuple[int, int]] = []
    assert list(verify(path, lambda *step: steps.append(step))) == []
    assert steps[-1][0] == steps[-1][1] > 0
    assert listing(path) == before


def test_an_empty_cache_has_no_problems(tmp_path: Path):
    CacheWriter(tmp_path / "set").__exit__(None, None, None)
    assert check(tmp_path / "set") == []


def test_a_flipped_byte_names_the_sample_and_its_source(path: Path):
    file, offset = blob_place(path, "latent 3")
    flip(file, offset + 100)
    (problem,) = check(path)
    assert (problem.kind, problem.sample, problem.source) == ("damaged", 3, "3.png")
    assert file.name in problem.place and "latent" in problem.what
    assert "3.png" in str(problem)


def test_a_damaged_blob_names_every_sample_that_shares_it(path: Path):
    flip(*blob_place(path, SHARED, 1))
    problems = check(path)
    assert samples(problems) == set(range(5)) and len(problems) == 5
    assert {problem.what.split(":")[0] for problem in problems} == {"conditioning"}


def test_damaged_named_and_unused_entries_are_reported_separately(path: Path):
    write_set(path, range(3))
    flip(*blob_place(path, "empty caption"))
    flip(*blob_place(path, "latent 4"))
    named, unused = sorted(check(path), key=lambda problem: "unused" in problem.what)
    assert "'empty caption'" in named.what and "unused entry (latent" in unused.what


def test_any_flipped_byte_of_a_payload_is_found(path: Path):
    draw = random.Random(1)
    places = [blob_place(path, f"latent {i}") for i in range(5)]
    for _ in range(20):
        file, offset = draw.choice(places)
        at, bits = offset + draw.randrange(1024), 1 << draw.randrange(8)
        flip(file, at, bits)
        assert check(path), (file, at)
        flip(file, at, bits)
    assert check(path) == []


def test_a_deleted_shard_is_missing_and_names_the_samples_lost(path: Path):
    file = shard_files(path)[0]
    file.unlink()
    problems = check(path)
    assert {problem.kind for problem in problems} == {"missing"}
    assert problems[0].place == f"shards/{file.name}" and problems[0].sample is None
    assert samples(problems[1:]) >= set(range(5))


def test_a_truncated_shard_loses_only_the_data_after_the_cut(path: Path):
    file, offset = blob_place(path, "latent 2")
    os.truncate(file, offset + 10)
    problems = check(path)
    assert "bytes" in problems[0].what
    # The shared caption was stored with sample 0, so samples before the cut are whole.
    assert samples(problems[1:]) == {2, 3, 4}


def test_an_emptied_shard_is_damaged(path: Path):
    os.truncate(shard_files(path)[0], 0)
    assert samples(check(path, "damaged")) >= set(range(5))


def test_a_flipped_header_damages_the_file_but_no_sample(path: Path):
    flip(shard_files(path)[0], 40)
    (problem,) = check(path)
    assert "header" in problem.what and problem.sample is None


def test_swapped_shards_are_distinguished_from_damaged_ones(path: Path):
    data, thumbnails = shard_files(path)[0], shard_files(path, "t")[0]
    aside = path / "aside"
    data.rename(aside)
    thumbnails.rename(data)
    aside.rename(thumbnails)
    told = [problem for problem in check(path, "damaged") if "contains the data of" in problem.what]
    assert [problem.place for problem in told] == [f"shards/{data.name}", f"shards/{thumbnails.name}"]
    assert thumbnails.name in told[0].what and data.name in told[1].what


def test_a_shard_that_became_a_link_or_folder_is_damaged(path: Path, tmp_path: Path):
    file = shard_files(path)[0]
    file.rename(tmp_path / "elsewhere")
    file.mkdir()
    assert check(path, "damaged")
    file.rmdir()
    os.symlink(tmp_path / "elsewhere", file)
    assert "symbolic link" in check(path)[0].what


@pytest.mark.parametrize(
    "damage", [lambda f: flip(f, 2000), lambda f: os.truncate(f, 100), lambda f: os.truncate(f, 0)]
)
def test_a_damaged_index_is_named(path: Path, damage: Callable[[Path], None]):
    index = path / read_manifest(path).index_name
    damage(index)
    (problem,) = check(path)
    assert (problem.kind, problem.place) == ("damaged", index.name)


def test_a_missing_index_is_named(path: Path):
    index = path / read_manifest(path).index_name
    index.unlink()
    (problem,) = check(path)
    assert (problem.kind, problem.place) == ("missing", index.name)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 99}', b"\xff\xfe", b"[" * 100_000, b'{"format": "1"}']
)
def test_a_damaged_manifest_is_named(path: Path, text: bytes):
    (path / "dataset.json").write_bytes(text)
    (problem,) = check(path)
    assert (problem.kind, problem.place) == ("damaged", "dataset.json")


def test_a_changed_manifest_is_named(path: Path):
    manifest = path / "dataset.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"samples": 5', b'"samples": 4'))
    assert "edited after it was written" in check(path)[0].what


def test_a_missing_manifest_is_named_and_a_missing_folder_refused(path: Path, tmp_path: Path):
    (path / "dataset.json").unlink()
    assert check(path, "missing")[0].place == "dataset.json"
    with pytest.raises(CacheError, match="no such cache"):
        list(verify(tmp_path / "nowhere"))


Tamper = Callable[[dict[str, np.ndarray]], Any]
LIES: dict[str, Tamper] = {
    "layout": lambda a: a["entries"]["layout"].__setitem__(0, 99),
    "field": lambda a: a["entries"]["field"].__setitem__(0, 99),
    "refs": lambda a: a["entries"]["refs"].__setitem__(1, 1 << 60),
    "leaves": lambda a: a["entries"]["leaves"].__setitem__(1, 1 << 60),
    "shard": lambda a: a["refs"]["location"].__setitem__(0, 999 << 40),
    "offset": lambda a: a["refs"]["location"].__setitem__(0, (1 << 40) - 1),
    "variants": lambda a: a["samples"]["variants"].__setitem__(1, 1 << 50),
    "counts": lambda a: a["variants"].__setitem__(0, 1 << 31),
    "entry": lambda a: a["variants"].__setitem__(-1, 1 << 31),
    "captions": lambda a: a["samples"]["captions"].__setitem__(0, (1 << 64) - 1),
    "caption": lambda a: a["captions"].__setitem__(0, 9999),
    "source": lambda a: a["samples"]["source"].__setitem__(0, 9999),
    "set": lambda a: a["samples"]["set"].__setitem__(0, 9),
    "bucket": lambda a: a["samples"]["bucket"].__setitem__(0, 1),
    "no such bucket": lambda a: a["samples"]["bucket"].__setitem__(0, 77),
    "string ends": lambda a: a["string_ends"].__setitem__(0, 1 << 60),
    "layout ends": lambda a: a["layout_ends"].__setitem__(-1, 3),
    "layout text": lambda a: a["layouts"].__setitem__(slice(0, 4), 255),
    "string text": lambda a: a["strings"].__setitem__(slice(0, 4), 255),
    "two keys": lambda a: a["entries"]["key"].__setitem__(0, a["entries"]["key"][1]),
    "order": lambda a: a["entry_order"].__setitem__(0, a["entry_order"][1]),
    "route": lambda a: a["routes"].__setitem__(9, a["routes"][9] ^ 1),
    "named": lambda a: a["entries"]["key"].__setitem__(0, np.void(b"x" * 16)),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_inconsistent_index_with_a_correct_hash_is_damaged(path: Path, lie: str):
    forge(path, LIES[lie])
    (problem,) = check(path, "damaged")
    assert problem.place == read_manifest(path).index_name


def test_a_cache_can_be_verified_while_it_is_republished(path: Path):
    problems = verify(path)
    flip(*blob_place(path, "latent 3"))
    first = next(problems)
    write_set(path, [8])
    assert first.sample == 3 and list(problems) == []
    assert len(open_cache(path)) == 1


def test_empty_tensors_are_not_reported_as_damaged(tmp_path: Path):
    with CacheWriter(tmp_path / "set") as writer:
        writer.add(latent={**latent(0), "none": torch.empty(0, 4)}, conditioning=[[torch.empty(0), {}]])
    assert check(tmp_path / "set") == []
