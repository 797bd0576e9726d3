"""The cache that a run encodes to: which folders are refused, and whose samples are replaced."""

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheError, CacheUnreadable, CacheWriter, open_cache, verify
from streamcache.dataset_cache.encode.encode import encode, is_encoded
from streamcache.dataset_cache.format.manifest import read_manifest
from streamcache.dataset_cache.write.repack import SMALL_SHARDS

from ...support.datasets import content, shard_files
from ...support.fixtures import settle


def test_encoding_into_a_source_is_refused(plan, tmp_path, picture):
    picture("set/a.png")
    with pytest.raises(CacheError, match="encode to another folder"):
        encode(plan(), tmp_path / "set")
    encode(plan(), tmp_path / "set" / "cache")
    settle()
    encode(plan(), tmp_path / "set" / "cache")
    assert encode(plan(), tmp_path / "set" / "cache").unchanged


def test_a_second_encoder_of_the_same_cache_is_refused(plan, tmp_path, picture):
    picture("set/a.png")
    with (
        CacheWriter(tmp_path / "cache") as writer,
        pytest.raises(CacheError),
    ):
        try:
            encode(plan(), tmp_path / "cache")
        finally:
            writer.add(latent={"samples": torch.zeros(1, 4, 2, 2)})


def test_a18_nothing_is_cleared_by_default(run, tmp_path, picture, images):
    for n in range(4):
        picture(f"set/{n}.png", seed=n)
    run("set")
    aside = tmp_path / "aside.png"
    (tmp_path / "set" / "3.png").rename(aside)
    assert run("set").samples == 3
    assert open_cache(tmp_path / "cache").manifest.counts["unused"] == 1
    aside.rename(tmp_path / "set" / "3.png")
    assert run("set").samples == 4 and images.count == 0


def test_samples_saved_by_another_program_are_replaced_even_if_nothing_is_encoded(run, tmp_path, picture):
    picture("set/a.png", caption="a cat")
    run("set")
    with CacheWriter(tmp_path / "cache", append=True) as writer:
        writer.add(latent={"samples": torch.zeros(1, 4, 8, 8)}, source="stranger")
    report = run("set")
    assert not report.unchanged and not report.made
    assert [sample.source for sample in open_cache(tmp_path / "cache")] == ["set/a.png"]


def test_many_small_runs_leave_no_old_generations_or_shards(run, tmp_path, picture):
    for n in range(SMALL_SHARDS + 2):  # enough for small shards to be merged on the way
        picture(f"set/{n}.png", seed=n)
        run("set")
    manifest = read_manifest(tmp_path / "cache")
    assert {file.name for file in (tmp_path / "cache" / "shards").iterdir()} == {s.file for s in manifest.shards}
    assert [file.name for file in (tmp_path / "cache").glob("index-*")] == [manifest.index_name]


# Shards that are gone


def all_read(path: Path) -> int:
    """Read every sample, checked against its hashes."""
    return len(content(path))


def test_a_cache_whose_shards_were_deleted_is_encoded_again(run, tmp_path, three, images, texts):
    run("set")
    before = content(tmp_path / "cache")
    assert run("set").unchanged
    for shard in (tmp_path / "cache" / "shards").iterdir():
        shard.unlink()
    report = run("set")
    assert not report.unchanged and images.count == 3 and texts.count == 4
    assert content(tmp_path / "cache") == before and list(verify(tmp_path / "cache")) == []
    assert run("set").unchanged


def test_after_one_caption_changed_lost_latents_are_encoded_again_too(run, tmp_path, picture, images):
    for n in range(3):
        picture(f"set/{n}.png", seed=n, caption=f"caption {n}")
    run("set")
    picture("set/3.png", seed=3, caption="caption 3")
    run("set")
    first = shard_files(tmp_path / "cache")[0]
    first.unlink()
    (tmp_path / "set" / "3.txt").write_text("another caption")
    settle()
    report = run("set")
    assert images.count == 3 and report.samples == 4
    assert all_read(tmp_path / "cache") == 4 and list(verify(tmp_path / "cache")) == []
    assert first.name not in [shard.file for shard in read_manifest(tmp_path / "cache").shards]


@pytest.mark.parametrize("size", [0, 100, -1])
def test_a_truncated_shard_is_encoded_again(run, tmp_path, three, size):
    run("set")
    shard = shard_files(tmp_path / "cache")[0]
    os.truncate(shard, size if size >= 0 else shard.stat().st_size - 1)
    report = run("set")
    assert {made.why for made in report.made} == {"damaged"}
    assert all_read(tmp_path / "cache") == 3 and list(verify(tmp_path / "cache")) == []


def test_a_cache_of_another_plan_is_told_apart_without_opening_it(run, plan, tmp_path, three, picture, monkeypatch):
    picture("other/a.png")
    settle()
    run("set")
    cache, seen, real = tmp_path / "cache", [], os.lstat
    shutil.rmtree(cache / ".leases", ignore_errors=True)
    monkeypatch.setattr(os, "lstat", lambda path, **options: seen.append(str(path)) or real(path, **options))
    shards = [str(shard) for shard in shard_files(cache)]
    assert not is_encoded(plan("other"), cache)
    assert not (cache / ".leases").exists() and not set(shards) & set(seen)
    assert is_encoded(plan("set"), cache) and set(shards) <= set(seen)
    os.unlink(shards[0])
    assert not is_encoded(plan("set"), cache)


def test_a_dry_run_counts_lost_entries_as_to_be_encoded(run, plan, tmp_path, three):
    run("set")
    assert plan("set").report(tmp_path / "cache").encoded == {}
    shard_files(tmp_path / "cache")[0].unlink()
    assert plan("set").report(tmp_path / "cache").encoded == {"latent": 3, "conditioning": 4}


def test_a_shard_that_cannot_be_examined_is_not_encoded_again(run, tmp_path, three, images, monkeypatch):
    run("set")
    shard, real = shard_files(tmp_path / "cache")[0], os.lstat

    def fail(path, *args, **options):
        if str(path) == str(shard):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", fail)
        with pytest.raises(CacheUnreadable):
            run("set")
    assert images.count == 0 and run("set").unchanged


# Folders of other files


@pytest.mark.parametrize("name", ["photo.jpg", "my folder/file.txt", "model.safetensors"])
def test_a_folder_with_other_files_is_refused_before_anything_is_encoded(run, tmp_path, three, images, name):
    (tmp_path / "cache" / name).parent.mkdir(parents=True)
    (tmp_path / "cache" / name).write_text("mine")
    with pytest.raises(CacheError, match=f"is not a cache and contains {name.split('/')[0]}; choose an empty folder"):
        run("set")
    assert images.count == 0
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [name.split("/")[0]], "not even a lock"


def test_an_empty_folder_and_an_unfinished_or_published_cache_are_accepted(run, tmp_path, three):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / ".DS_Store").touch()
    with pytest.raises(KeyboardInterrupt), CacheWriter(tmp_path / "cache") as writer:
        writer.add(latent={"samples": torch.zeros(1, 4, 2, 2)})
        raise KeyboardInterrupt
    assert run("set").samples == 3
    (tmp_path / "cache" / "notes.txt").write_text("mine")
    (tmp_path / "set" / "0.txt").write_text("changed")
    settle()
    assert run("set").samples == 3
