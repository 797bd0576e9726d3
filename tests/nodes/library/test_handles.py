"""Handles are small, keep nothing open while idle, and report clearly what happened to their cache."""

import copy
import gc
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from streamcache.dataset_cache import CacheError, LazyTensor
from streamcache.dataset_cache.format.tensors import Codec, register_codec
from streamcache.dataset_cache.read.leases import holders
from streamcache.nodes.library import open_caches
from streamcache.nodes.library.handles import handle_of, lazy_field
from streamcache.nodes.library.open_caches import OpenPool

from ...support.samples import assert_holds, conditioning, latent, write_cache


@pytest.fixture(autouse=True)
def nothing_open():
    yield
    open_caches.close_idle()


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def test_a_handle_opens_what_it_names(tmp_path: Path):
    handle = handle_of("set", write_cache(tmp_path / "set", 5))
    assert len(handle) == 5
    assert_holds(handle.open(), range(5))
    some = handle.select(np.array([4, 0]))
    assert len(some) == 2
    assert_holds(some.open(), [4, 0])
    assert_holds(some.select(np.array([1])).open(), [0])
    others = handle.select(np.array([0, 4]))
    assert len({dataset.open().generation for dataset in (handle, some, others)}) == 3


def test_an_idle_handle_has_no_lease(tmp_path: Path):
    path = write_cache(tmp_path / "set", 3)
    handle = handle_of("set", path)
    lazy = [lazy_field(handle, n, "latent") for n in range(3)]
    assert len(holders(path)) == 1
    open_caches.close_idle()
    gc.collect()
    assert holders(path) == []
    assert same(lazy[2]["samples"].realize(), latent(2)["samples"])


def test_a_dataset_in_use_keeps_its_lease(tmp_path: Path):
    path = write_cache(tmp_path / "set", 3)
    dataset = handle_of("set", path).open()
    open_caches.close_idle()
    gc.collect()
    assert len(holders(path)) == 1
    assert_holds(dataset, range(3))


def test_lazy_fields_equal_the_stored_ones(tmp_path: Path):
    handle = handle_of("set", write_cache(tmp_path / "set", 4))
    for number in range(4):
        found = lazy_field(handle, number, "conditioning")
        tensor, facts = found[0]
        expected, expected_facts = conditioning(number)[0]
        assert isinstance(tensor, LazyTensor)
        assert same(tensor.realize(), expected)
        assert same(facts["pooled_output"].realize(), expected_facts["pooled_output"])
        assert facts["width"] == expected_facts["width"]
    assert same(copy.deepcopy(found)[0][0].realize(), expected)
    with pytest.raises(CacheError, match="has no mask"):
        lazy_field(handle, 0, "mask")


class Pair:
    def __init__(self, tensors: list) -> None:
        self.tensors = tensors


def test_lazy_fields_work_inside_types_with_a_codec(tmp_path: Path):
    from streamcache.dataset_cache import CacheWriter

    register_codec(Codec("tests.handles.pair", Pair, lambda pair: list(pair.tensors), Pair))
    with CacheWriter(tmp_path / "set") as writer:
        writer.add(latent={"samples": Pair([latent(0)["samples"], latent(1)["samples"]])}, conditioning=conditioning(0))
    found = lazy_field(handle_of("set", tmp_path / "set"), 0, "latent")["samples"]
    assert [same(tensor.realize(), latent(n)["samples"]) for n, tensor in enumerate(found.tensors)] == [True, True]


def test_a_superseded_handle_is_reported(tmp_path: Path):
    path = write_cache(tmp_path / "set", 3)
    handle = handle_of("set", path)
    write_cache(path, 2, first=7)
    with pytest.raises(CacheError, match="saved again since.*queue the workflow again"):
        handle.open()
    assert_holds(handle_of("set", path).open(), [7, 8])


def test_an_open_dataset_outlives_a_newer_generation(tmp_path: Path):
    path = write_cache(tmp_path / "set", 3)
    handle = handle_of("set", path)
    lazy = lazy_field(handle, 1, "latent")
    write_cache(path, 2, first=7)
    assert same(lazy["samples"].realize(), latent(1)["samples"])
    assert_holds(handle.open(), range(3))


def test_a_removed_cache_is_reported(tmp_path: Path):
    path = write_cache(tmp_path / "set", 3)
    handle = handle_of("set", path)
    assert len(handle.open()) == 3
    shutil.rmtree(path)
    with pytest.raises(CacheError, match="is gone.*save it again"):
        handle.open()


def test_an_unfinished_cache_has_no_handle(tmp_path: Path):
    (tmp_path / "set" / ".build").mkdir(parents=True)
    with pytest.raises(CacheError, match="never finished"):
        handle_of("set", tmp_path / "set")


def test_idle_caches_close_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(open_caches, "OPEN_CACHES", OpenPool(open_caches._open_generation, idle_seconds=0.2))
    path = write_cache(tmp_path / "set", 1)
    handle_of("set", path).open()
    for _ in range(600):
        if not holders(path):
            break
        time.sleep(0.05)
    assert holders(path) == []
