"""repair drops damaged entries and the samples that need them, and keeps all intact data."""

import os
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheBusy, CacheError, CacheWriter, open_cache
from streamcache.dataset_cache.format import digest_key, dropped_keys
from streamcache.dataset_cache.format.manifest import read_manifest
from streamcache.dataset_cache.upkeep import repair, verify

from ...support.datasets import (
    SHARED,
    blob_place,
    content,
    flip,
    listing,
    put_sample,
    shard_files,
    write_set,
)

pytestmark = pytest.mark.usefixtures("platform")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_set(tmp_path / "my set ünï", range(5))


def without(before: list[dict], *dropped: int) -> list[dict]:
    return [sample for i, sample in enumerate(before) if i not in dropped]


def sound(path: Path) -> bool:
    return not [problem for problem in verify(path) if problem.kind != "debris"]


def test_an_intact_cache_is_not_changed(path: Path):
    before, generation = listing(path), open_cache(path).generation
    report = repair(path, accept_loss=True)
    assert (report.generation, report.samples, report.entries) == (generation, (), 0)
    assert listing(path) == before and "nothing to repair" in str(report)


def test_a_damaged_sample_is_dropped_and_the_rest_opens(path: Path):
    before = content(path)
    flip(*blob_place(path, "latent 2"))
    report = repair(path, accept_loss=True)
    assert report.samples == ((2, "2.png"),) and report.entries == 1
    assert content(path) == without(before, 2)
    assert sound(path)
    cache = open_cache(path)
    assert sum(len(rows) for rows in cache.buckets().values()) == len(cache) == 4
    assert not cache.has("latent 2") and cache.has("caption 2")


def test_a_damaged_shared_caption_drops_all_its_samples(path: Path):
    flip(*blob_place(path, SHARED))
    assert len(repair(path, accept_loss=True).samples) == 5
    assert len(open_cache(path)) == 0 and sound(path)


def test_a_damaged_thumbnail_drops_only_itself(path: Path):
    before = content(path)
    flip(*blob_place(path, "thumbnail 3"))
    assert repair(path, accept_loss=True).samples == ()
    after = content(path)
    assert "thumbnail 0" in before[3] and "thumbnail 0" not in after[3]
    assert [{**sample, "thumbnail 0": 0} for sample in before] == [{**sample, "thumbnail 0": 0} for sample in after]


def test_verify_says_which_samples_a_repair_drops_and_it_drops_no_more(path: Path):
    flip(*blob_place(path, "latent 2"))
    flip(*blob_place(path, "thumbnail 3"))
    assert [problem.sample for problem in verify(path) if problem.drops] == [2]
    before = listing(path)
    with pytest.raises(CacheError, match="would drop 1 sample, not at most 0. Nothing was changed; verify it again"):
        repair(path, accept_loss=True, most=0)
    assert listing(path) == before
    assert repair(path, accept_loss=True, most=1).samples == ((2, "2.png"),)


def test_a_damaged_named_entry_is_dropped(path: Path):
    before = content(path)
    flip(*blob_place(path, "empty caption"))
    report = repair(path, accept_loss=True)
    assert report.names == ("empty caption",) and not report.samples
    assert open_cache(path).named == {} and content(path) == before


def test_a_deleted_shard_drops_only_its_samples(path: Path):
    write_set(path, range(5, 8), append=True)
    before = content(path)
    shard_files(path)[1].unlink()
    report = repair(path, accept_loss=True)
    assert [sample for sample, _ in report.samples] == [5, 6, 7]
    assert content(path) == without(before, 5, 6, 7) and sound(path)


def test_intact_data_is_rescued_from_a_truncated_shard(path: Path):
    before = content(path)
    file, offset = blob_place(path, "latent 3")
    os.truncate(file, offset + 8)
    assert [sample for sample, _ in repair(path, accept_loss=True).samples] == [3, 4]
    assert content(path) == without(before, 3, 4) and sound(path)
    assert file.name not in [shard.name for shard in shard_files(path)]


def test_everything_is_rescued_from_a_shard_with_a_damaged_header(path: Path):
    before = content(path)
    flip(shard_files(path)[0], 40)
    with pytest.raises(CacheError, match="header"):
        open_cache(path)[0].realize()
    report = repair(path, accept_loss=True)
    assert (report.samples, report.entries, len(report.shards)) == ((), 0, 1)
    assert content(path) == before and sound(path)


def test_swapped_shards_are_refused_because_nothing_is_lost(path: Path):
    first, second = shard_files(path)[0], shard_files(path, "t")[0]
    first.rename(path / "aside")
    second.rename(first)
    (path / "aside").rename(second)
    with pytest.raises(CacheError, match="rename the two files back"):
        repair(path, accept_loss=True)
    assert len(open_cache(path)) == 5


@pytest.mark.parametrize("file", ["manifest", "index"])
def test_a_damaged_manifest_or_index_is_refused(path: Path, file: str):
    name = "dataset.json" if file == "manifest" else read_manifest(path).index_name
    flip(path / name, 300)
    with pytest.raises(CacheError, match="restore"):
        repair(path, accept_loss=True)


def test_a25_dropped_keys_are_remembered_until_they_are_stored_again(path: Path):
    flip(*blob_place(path, "latent 2"))
    repair(path, accept_loss=True)
    assert dropped_keys(read_manifest(path)) == {digest_key("latent 2"): "damaged"}
    write_set(path, [0], append=True)
    assert dropped_keys(read_manifest(path)) == {digest_key("latent 2"): "damaged"}
    with CacheWriter(path) as writer:
        assert not writer.has("latent 2") and writer.has("latent 1")
        put_sample(writer, 2)
    assert dropped_keys(read_manifest(path)) == {} and "dropped" not in read_manifest(path).extra


def test_entries_encoded_again_are_not_taken_for_damaged(path: Path):
    before = content(path)
    flip(*blob_place(path, "latent 2"))
    repair(path, accept_loss=True)
    write_set(path, range(5))
    assert content(path) == before and sound(path)


def test_repair_is_refused_while_another_process_writes(path: Path):
    writer = CacheWriter(path)
    with pytest.raises(CacheBusy, match="process"):
        repair(path, accept_loss=True)
    writer.close()


def test_readers_of_the_damaged_generation_continue(path: Path):
    reader = open_cache(path)
    flip(*blob_place(path, "latent 2"))
    repair(path, accept_loss=True)
    assert len(reader) == 5 and torch.equal(reader[4].latent["samples"], open_cache(path)[3].latent["samples"])


def test_unused_entries_survive_a_repair(path: Path):
    write_set(path, range(2))
    flip(*blob_place(path, "latent 1"))
    repair(path, accept_loss=True)
    assert open_cache(path).has("latent 4") and not open_cache(path).has("latent 1")
