"""Reading several samples into one batch."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from streamcache.dataset_cache import CacheError, CacheWriter, open_cache

from ...support.samples import (
    EVERY_DTYPE,
    bits,
    conditioning,
    latent,
    raw,
    same,
    shard_files,
    write_cache,
)
from .small_batches import check, sample, write


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cache(tmp_path_factory.mktemp("template") / "set", 12)


@pytest.fixture
def path(dataset: Path, tmp_path: Path) -> Path:
    return shutil.copytree(dataset, tmp_path / "set")


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A dataset of samples in every shape that makes reading hard, with what was given for each."""
    draw = random.Random(1)
    given = []
    for i in range(60):
        fields: dict[str, Any] = {"latent": {"samples": bits((1, 4, 8, 8), seed=i)}}
        if draw.random() < 0.3:
            fields["latent"] = {"first": bits((draw.randint(0, 3), 5), torch.uint8, i), **fields["latent"]}
        if draw.random() < 0.3:
            fields["latent"]["noise_mask"] = bits((1, draw.randint(0, 9)), draw.choice(EVERY_DTYPE), i)
        if draw.random() < 0.8:
            fields["conditioning"] = conditioning(draw.randint(0, 5), draw.randint(1, 3))
        if draw.random() < 0.3:
            fields["mask"] = draw.choice(
                [bits((), torch.int64, i), bits((0,)), bits((7,), torch.bool, i % 3), 5, "text"]
            )
        if draw.random() < 0.2:
            fields["nothing"] = draw.choice([None, [], {"a": None}, (1, "x")])
        if draw.random() < 0.2:
            fields["thumbnail"] = bits((3, 3), torch.uint8, i)
        given.append({name: value for name, value in fields.items() if value is not None})
    path = tmp_path_factory.mktemp("odd") / "set"
    for first in range(0, 60, 20):
        with CacheWriter(path, append=True) as w:
            for fields in given[first : first + 20]:
                w.add(**fields)
    return path, given


@pytest.mark.parametrize("check", [False, True], ids=["unchecked", "checked"])
def test_a_batch_equals_its_samples(odd, check):
    path, given = odd
    cache = open_cache(path, check=check)
    buffers = cache.buffers(4)
    draw = random.Random(2)
    for n in range(60):
        chosen = [draw.randrange(60) for _ in range(draw.randint(1, 6))]
        fields = None if n % 3 else draw.sample(cache.fields, draw.randint(1, len(cache.fields)))
        batch = cache.read_batch(chosen, fields=fields, buffers=buffers if n % 2 else None)
        names = [name for name in cache.fields if name != "thumbnail"] if fields is None else fields
        assert list(batch.fields) == list(names) and batch.indices == chosen and len(batch) == len(chosen)
        for name in names:
            assert same(batch.fields[name], [given[i].get(name) for i in chosen]), f"{name} of {chosen}"
        if "latent" in names:
            assert same(batch.latents, torch.cat([given[i]["latent"]["samples"] for i in chosen]))
        else:
            assert batch.latents is None
    for one, fields in zip(cache, given, strict=True):
        assert same(dict(one.realize().fields), {name: fields[name] for name in cache.fields if name in fields})


def test_c9_a_batch_of_several_buckets_is_refused(path):
    with pytest.raises(CacheError, match=r"samples \[0, 1\] are in 2 different buckets"):
        open_cache(path).read_batch([0, 1])


def test_a_batch_can_be_written_to_without_harm(path):
    cache = open_cache(path)
    batch = cache.read_batch([0, 3])
    batch.latents.zero_()
    for one in batch.conditionings:
        one[0][0].zero_()
    assert same(cache[0].latent, latent(0)) and same(cache[3].conditioning, conditioning(3))
    assert same(open_cache(path).read_batch([0]).conditionings, [conditioning(0)])


def test_every_bit_of_a_latent_comes_from_the_file(path):
    """The bytes in the shard are those that were given, in the order that they were given."""
    content = b"".join(file.read_bytes() for file in shard_files(path))
    for i in range(12):
        assert raw(latent(i)["samples"]) in content


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(
    "samples",
    [
        [sample(i) for i in range(6)],
        [sample(i, words=2 + i % 3) for i in range(6)],
        [sample(i, mask=i % 2 == 0) for i in range(6)],
        [sample(i, extra=i % 3 == 0) for i in range(6)],
        [{**sample(i), "conditioning": sample(0)["conditioning"]} for i in range(6)],
    ],
    ids=["alike", "texts differ in length", "some lack a field", "latents differ in layout", "captions repeat"],
)
def test_a_batch_contains_the_data_of_its_samples(samples: list[dict], checked: bool, tmp_path: Path):
    cache = open_cache(write(tmp_path / "set", samples), check=checked)
    slot = cache.buffers(4)
    for indices in ([0, 1, 2, 3], [5, 0, 4], [2], [3, 3, 1, 0]):
        check(cache, samples, indices)
        check(cache, samples, indices, buffers=slot)


def test_the_latents_of_a_batch_and_of_its_fields_are_the_same_memory(tmp_path: Path):
    cache = open_cache(write(tmp_path / "set", [sample(i) for i in range(2)]))
    batch = cache.read_batch([0, 1])
    batch.latents[1] = 7
    assert (batch.fields["latent"][1]["samples"] == 7).all()


def test_fields_are_built_when_they_are_looked_at(tmp_path: Path):
    cache = open_cache(write(tmp_path / "set", [sample(0)]))
    batch = cache.read_batch([0], fields=["latent", "mask"])
    assert list(batch.fields) == ["latent", "mask"]
    assert "conditioning" not in batch.fields
    assert batch.conditionings == []
    assert batch.fields["mask"] is batch.fields["mask"]


def test_samples_of_different_buckets_are_refused(tmp_path: Path):
    cache = open_cache(write(tmp_path / "set", [sample(0), sample(1, width=16)]))
    with pytest.raises(CacheError, match="2 different buckets"):
        cache.read_batch([0, 1])
