"""Writers refuse what is not theirs: shards that are gone are not published again, other folders are not mixed with."""

import os

import pytest

from streamcache.dataset_cache import CacheError, CacheWriter, export, merge
from streamcache.dataset_cache.format.manifest import read_manifest

from ...support.datasets import content, put_sample, shard_files, write_set


def test_a_writer_does_not_find_entries_whose_shard_is_gone(tmp_path):
    path = write_set(tmp_path / "set", range(4))
    before = content(path)
    shard_files(path)[0].unlink()
    with CacheWriter(path) as writer:
        assert not writer.has("latent 2")
        writer.describe_set("main", {"prior": False, "weight": 1.0})
        for i in range(4):
            put_sample(writer, i)
    assert content(path) == before


def test_adding_samples_to_a_cache_with_a_lost_shard_is_refused(tmp_path):
    path = write_set(tmp_path / "set", range(4))
    before = read_manifest(path)
    shard_files(path)[0].unlink()
    with pytest.raises(CacheError, match="is missing or truncated.*verify --repair"):
        CacheWriter(path, append=True)
    assert read_manifest(path) == before


def test_a_shard_that_vanishes_while_a_writer_works_is_not_published(tmp_path):
    path = write_set(tmp_path / "set", range(4))
    before = read_manifest(path)
    writer = CacheWriter(path)
    put_sample(writer, 1)
    put_sample(writer, 9)
    shard_files(path)[0].unlink()
    with pytest.raises(CacheError, match="has vanished.*run the same save again"):
        writer.publish()
    writer.close()
    assert read_manifest(path) == before
    with CacheWriter(path) as again:
        put_sample(again, 1)
        put_sample(again, 9)
    assert len(content(path)) == 2


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "photo.jpg").touch()
    for write in (
        lambda: CacheWriter(tmp_path / "set"),
        lambda: export(write_set(tmp_path / "other", range(2)), tmp_path / "set"),
        lambda: merge([tmp_path / "other"], tmp_path / "set"),
    ):
        with pytest.raises(CacheError, match="contains photo.jpg"):
            write()
    assert [file.name for file in (tmp_path / "set").iterdir()] == ["photo.jpg"]


@pytest.mark.skipif(os.name == "nt", reason="Windows makes names durable by itself")
def test_the_name_of_a_new_cache_is_durable_before_anything_is_in_it(tmp_path, monkeypatch):
    synced, real = [], os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with CacheWriter(tmp_path / "a" / "b" / "set"):
        assert set(synced) >= {folder.stat().st_ino for folder in (tmp_path / "a" / "b", tmp_path / "a", tmp_path)}
