"""A subset behaves as a dataset of its own, and reads what the whole one reads."""

from pathlib import Path

import numpy as np
import pytest
import torch

from streamcache.dataset_cache import CacheError, Subset, open_cache

from ...support.samples import assert_holds, write_cache

CHOSEN = [7, 1, 4, 1]


@pytest.fixture
def whole(tmp_path: Path):
    return open_cache(write_cache(tmp_path / "set", 9))


@pytest.fixture
def subset(whole) -> Subset:
    return Subset(whole, CHOSEN)


def test_it_has_the_chosen_samples_in_the_given_order(subset: Subset):
    assert_holds(subset, CHOSEN)
    assert [sample.index for sample in subset] == [0, 1, 2, 3]
    assert subset[-1].source == "00001.png"
    with pytest.raises(IndexError):
        subset[4]


def test_its_columns_are_those_of_its_samples(subset: Subset, whole):
    assert subset.column("bucket").tolist() == [whole.column("bucket")[i] for i in CHOSEN]
    assert subset.column("crop")[:, 0].tolist() == CHOSEN
    assert subset.variants("latent").tolist() == [1, 1, 1, 1]
    assert subset.captions(0) == ["caption 7"]
    assert subset.keys(0) == whole.keys(7)
    assert all(subset.has(key) for key in subset.keys(2)["latent"])


def test_its_buckets_number_its_own_samples(subset: Subset, whole):
    found = {bucket: rows.tolist() for bucket, rows in subset.buckets().items()}
    expected = {
        bucket: [at for at, i in enumerate(CHOSEN) if i in rows.tolist()]
        for bucket, rows in whole.buckets().items()
        if set(CHOSEN) & set(rows.tolist())
    }
    assert found == expected


def test_its_batches_read_its_samples(subset: Subset, whole):
    buffers = subset.buffers(2)
    subset.will_need([0, 1])
    batch = subset.read_batch([1, 3], buffers=buffers)
    expected = whole.read_batch([1, 1])
    assert torch.equal(batch.latents.view(torch.uint8), expected.latents.view(torch.uint8))
    assert batch.indices == [1, 3]
    assert batch.captions == ["caption 1", "caption 1"]


def test_other_samples_are_another_generation(whole):
    generations = {Subset(whole, chosen).generation for chosen in ([0, 1], [1, 0], [0], range(9))}
    assert len(generations | {whole.generation}) == 5
    assert Subset(whole, np.array([0, 1])).generation == Subset(whole, [0, 1]).generation


def test_missing_samples_are_refused(whole):
    with pytest.raises(CacheError, match="beyond its 9"):
        Subset(whole, [9])
    assert len(Subset(whole, [])) == 0
