"""What every dataset looks like."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from streamcache.dataset_cache import Bucket, Cache, CacheWriter, Dataset, Plan, Samples, Subset, open_cache
from streamcache.dataset_cache.index import NO_BUCKET

from ...support.samples import (
    BUCKETS,
    bits,
    conditioning,
    latent,
    same,
    write_cache,
)

CHOSEN = [7, 1, 4, 1]


@pytest.fixture
def whole(tmp_path: Path):
    return open_cache(write_cache(tmp_path / "set", 9))


@pytest.fixture
def subset(whole) -> Subset:
    return Subset(whole, CHOSEN)


@pytest.mark.parametrize(
    ("kind", "protocol"), [(Cache, Dataset), (Subset, Dataset), (Plan, Samples)], ids=lambda kind: kind.__name__
)
def test_datasets_fulfil_their_protocol(kind: type, protocol: type, subset: Subset):
    """The signatures are checked by the type checker; attributes that a constructor sets are on the instance."""
    instance = {Cache: subset.cache, Subset: subset}.get(kind, kind)
    members = {name for base in protocol.__mro__ for name in vars(base) if not name.startswith("_")}
    assert [name for name in sorted(members) if not hasattr(instance, name)] == []


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cache(tmp_path_factory.mktemp("template") / "set", 12)


@pytest.fixture
def path(dataset: Path, tmp_path: Path) -> Path:
    return shutil.copytree(dataset, tmp_path / "set")


def test_samples_are_a_sequence(path):
    cache = open_cache(path)
    assert cache[-1].index == 11 and cache[np.int64(3)].index == 3 and [s.index for s in cache] == list(range(12))
    for i in (12, -13, 10**12):
        with pytest.raises(IndexError, match=f"sample {i} does not exist: the dataset has 12"):
            cache[i]
    for use in (cache.source, cache.captions, lambda i: cache.will_need([i])):
        with pytest.raises(IndexError):
            use(12)


def test_c5_buckets_are_those_of_eager_data(tmp_path):
    given = [latent(i, BUCKETS[i % 3]) for i in range(10)]
    given += [{"samples": bits((1, 16, 5, 4, 4), torch.bfloat16, 5)}, {"samples": bits((1, 4, 8, 8), torch.float32, 6)}]
    with CacheWriter(tmp_path / "set") as w:
        for one in given:
            w.add(latent={**one, "noise_mask": bits((1, 8, 8))} if len(one) % 2 else one)
        w.add(conditioning=conditioning(0))
        w.add(latent={"other": bits((3,))})
    eager: dict[Bucket, list[int]] = {}
    for i, one in enumerate(given):
        eager.setdefault(Bucket(tuple(one["samples"].shape[1:]), one["samples"].dtype), []).append(i)
    cache = open_cache(tmp_path / "set")
    assert {bucket: found.tolist() for bucket, found in cache.buckets().items()} == eager
    assert all(found.dtype == np.int64 for found in cache.buckets().values())
    assert (cache.column("bucket")[len(given) :] == NO_BUCKET).all(), "samples without a latent are in no bucket"
    for bucket, indices in cache.buckets().items():
        batch = cache.read_batch(indices)
        assert tuple(batch.latents.shape[1:]) == bucket.shape and batch.latents.dtype == bucket.dtype
        assert same(list(batch.latents.split(1)), [given[i]["samples"] for i in indices])


def test_a_bucket_is_shown_in_pixels_if_they_are_known(tmp_path):
    with CacheWriter(tmp_path / "set") as writer:
        for shape, crop in (
            ((1, 4, 8, 16), (0, 0, 128, 64)),
            ((1, 4, 3, 8, 8), (0, 0, 64, 64)),
            ((1, 4, 2, 2), (0,) * 4),
        ):
            writer.add(latent={"samples": torch.zeros(shape)}, crop=crop)
    cache = open_cache(tmp_path / "set")
    assert list(map(str, cache.buckets())) == ["128×64", "64×64×3", "latents of 4×2×2"]
    assert list(map(str, Subset(cache, [0]).buckets())) == ["128×64"]
    assert all(Bucket(bucket.shape, bucket.dtype) == bucket for bucket in cache.buckets())
