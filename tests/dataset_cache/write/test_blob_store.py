"""Storing each blob once."""

import errno
import os

import pytest
import torch

from streamcache.dataset_cache import CacheError, CacheWriter, open_cache
from streamcache.dataset_cache.format.files import WritableFile
from streamcache.dataset_cache.format.manifest import read_manifest
from streamcache.dataset_cache.write import growth

from ...support.samples import (
    bits,
    conditioning,
    latent,
    raw,
    same,
    shard_files,
    write_cache,
)
from .stored_bytes import data_bytes


def test_equal_tensors_are_stored_once(tmp_path):
    shared = conditioning(0)
    with CacheWriter(tmp_path / "set") as w:
        for i in range(50):
            w.add(latent=latent(i, (1, 4, 8, 8)), conditioning=shared)
    assert data_bytes(tmp_path / "set") == 50 * 4 * 8 * 8 * 2 + 5 * 16 * 4 + 12 * 2
    cache = open_cache(tmp_path / "set", check=True)
    assert all(same(one.conditioning, shared) for one in cache)
    batch = cache.read_batch([3, 30])
    assert same(batch.conditionings, [shared, shared]) and same(batch.latents[1:], latent(30, (1, 4, 8, 8))["samples"])


def test_equal_tensors_of_a_later_run_are_stored_once(tmp_path):
    write_cache(tmp_path / "set", 5)
    before = data_bytes(tmp_path / "set")
    write_cache(tmp_path / "set", 5, append=True)
    assert data_bytes(tmp_path / "set") == before
    assert len(open_cache(tmp_path / "set")) == 10
    assert read_manifest(tmp_path / "set").counts["entries"] == 10


def test_blobs_with_colliding_hashes_are_kept_apart(tmp_path, monkeypatch):
    monkeypatch.setattr("streamcache.dataset_cache.write.blob_store.blob_hash", lambda data, dtype, shape: b"h" * 16)
    for run in range(3):
        with CacheWriter(tmp_path / "set", append=True) as w:
            for n in range(3):
                w.add(thing={"a": bits((8,), torch.uint8, n + run), "b": bits((8,), torch.uint8, n + 1)})
    found = [one.fields["thing"] for one in open_cache(tmp_path / "set")]
    expected = [
        {"a": bits((8,), torch.uint8, n + run), "b": bits((8,), torch.uint8, n + 1)}
        for run in range(3)
        for n in range(3)
    ]
    assert same(found, expected)


def test_a_damaged_blob_is_stored_again_instead_of_shared(tmp_path):
    write_cache(tmp_path / "set", 1)
    (file,) = shard_files(tmp_path / "set")
    content = bytearray(file.read_bytes())
    content[content.index(raw(latent(0)["samples"]))] ^= 1
    file.write_bytes(content)
    with CacheWriter(tmp_path / "set") as w:
        w.add(latent={"samples": latent(0)["samples"]}, other=1)
    assert same(open_cache(tmp_path / "set", check=True)[0].latent, latent(0))


def test_entries_that_share_blobs_with_another_killed_writer_find_them(tmp_path, monkeypatch):
    """The second writer refers to the first one's shards; publishing moves these, and then fails."""
    path = tmp_path / "set"
    with pytest.raises(RuntimeError), CacheWriter(path) as w:
        w.put("one", {"t": bits((100,))}, "thing")
        raise RuntimeError
    w = CacheWriter(path)
    w.put("two", {"t": bits((100,)), "more": 1}, "thing")
    with monkeypatch.context() as patch, pytest.raises(CacheError):
        patch.setattr(growth, "publish", raise_full)
        w.publish()
    w.close()
    with CacheWriter(path) as w:
        assert w.recovered_entries == 2
    cache = open_cache(path, check=True)
    assert same(cache.entry("one")["t"], bits((100,))) and same(cache.entry("two")["t"], bits((100,)))


def raise_full(*_: object, **__: object) -> None:
    raise CacheError("full")


def test_a_blob_of_its_own_shard_that_cannot_be_read_back_is_stored_again(tmp_path, monkeypatch):
    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with CacheWriter(tmp_path / "set") as w:
        w.put("one", torch.ones(8), "thing")
        with monkeypatch.context() as patch:
            patch.setattr(WritableFile, "read", fail)
            w.put("two", torch.ones(8), "thing")
    cache = open_cache(tmp_path / "set", check=True)
    assert torch.equal(cache.entry("one"), torch.ones(8)) and torch.equal(cache.entry("two"), torch.ones(8))
