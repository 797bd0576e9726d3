"""Compaction: fewer shards with the same content, without unreferenced blobs."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from streamcache.dataset_cache import CacheError, CacheWriter, open_cache
from streamcache.dataset_cache.format import LocalStorage
from streamcache.dataset_cache.format import segment as segments
from streamcache.dataset_cache.upkeep import compact, repair, verify
from streamcache.dataset_cache.write import repack

from ...support.datasets import blob_place, content, flip, latent, listing, put_sample, shard_files, write_set

pytestmark = pytest.mark.usefixtures("platform")


def names_in(file: Path) -> set[str]:
    with safe_open(file, "pt") as opened:
        return set(opened.keys())


def test_small_shards_become_one_of_each_kind(tmp_path: Path):
    path = tmp_path / "my set ünï"
    for i in range(3):
        write_set(path, [i], append=True)
    before = content(path)
    assert len(shard_files(path)) == 3
    steps: list[tuple[int, int]] = []
    report = compact(path, lambda *step: steps.append(step))
    assert report.shards == (6, 2) and report.bytes[1] < report.bytes[0]
    assert steps[-1][0] == steps[-1][1]
    assert [len(shard_files(path, kind)) for kind in "st"] == [1, 1]
    assert content(path) == before and list(verify(path)) == []


def test_compacting_twice_changes_nothing_the_second_time(tmp_path: Path):
    path = write_set(tmp_path / "set", range(3))
    write_set(path, range(6), append=True)
    compact(path)
    before = listing(path)
    assert compact(path).shards == (2, 2) and listing(path) == before


def test_unreferenced_blobs_are_dropped_and_unused_entries_kept(tmp_path: Path):
    path = write_set(tmp_path / "set", range(4))
    write_set(path, range(2))
    flip(*blob_place(path, "latent 0"))
    repair(path, accept_loss=True)
    blobs = len(names_in(shard_files(path)[0]))
    compact(path)
    assert len({name for name in names_in(shard_files(path)[0]) if not name.startswith("~pad")}) < blobs
    assert open_cache(path).has("latent 3") and list(verify(path)) == []


def test_readers_of_the_old_shards_continue(tmp_path: Path):
    path = write_set(tmp_path / "set", range(3))
    write_set(path, range(3, 6), append=True)
    reader = open_cache(path)
    compact(path)
    assert [sample.realize().source for sample in reader] == [f"{i}.png" for i in range(6)]
    assert content(path) == content(reader)


def test_an_empty_tensor_and_the_blob_at_its_place_both_move(tmp_path: Path):
    path = tmp_path / "set"
    for i in range(3):
        with CacheWriter(path, append=True) as writer:
            empty = {"a": torch.empty(0, 4), "b": torch.full((7,), i), "c": torch.empty(2, 0, dtype=torch.int8)}
            writer.add(latent={"samples": torch.full((1, 2, 2, 2), i)}, extra=empty)
    before = content(path)
    compact(path)
    assert content(path) == before and list(verify(path)) == []


def test_equal_blobs_of_two_shards_become_one(tmp_path: Path):
    path = write_set(tmp_path / "set", range(2))
    flip(*blob_place(path, "latent 1"))
    with CacheWriter(path, append=True) as writer:  # stored apart, since what is stored under its hash differs
        writer.put("again", {"samples": latent(1)["samples"]}, "latent")
    assert blob_place(path, "again") != blob_place(path, "latent 1")
    flip(*blob_place(path, "latent 1"))
    compact(path)
    assert blob_place(path, "again") == blob_place(path, "latent 1") and list(verify(path)) == []


def test_different_blobs_of_one_hash_stay_apart(tmp_path: Path):
    path = write_set(tmp_path / "set", range(2))
    flip(*blob_place(path, "latent 1"))
    with CacheWriter(path, append=True) as writer:
        writer.put("again", {"samples": latent(1)["samples"]}, "latent")
    compact(path)
    assert blob_place(path, "again")[0] != blob_place(path, "latent 1")[0]
    assert [problem.sample for problem in verify(path)] == [1]


def test_new_shards_start_when_full_by_size_or_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "set"
    for i in range(6):
        write_set(path, [i], append=True)
    before = content(path)
    monkeypatch.setattr(repack, "SHARD_BYTES", 4096)
    compact(path)
    assert len(shard_files(path)) > 2 and content(path) == before and list(verify(path)) == []
    monkeypatch.setattr(repack, "MAX_HEADER", 1400)
    compact(path)
    assert max(len(names_in(file)) for file in shard_files(path)) < 12
    assert content(path) == before and list(verify(path)) == []


def test_after_a_kill_while_merging_small_shards_the_cache_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "set"
    for i in range(3):
        write_set(path, [i], append=True)
        open_cache(path)  # so that readers are known by their leases
    before = content(path)

    def killed(*_: object, **__: object) -> None:
        raise SystemExit  # past every handler, as near to a kill as one process gets

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "remove_folder", lambda *_, **__: None)
        patch.setattr(LocalStorage, "sync", killed)
        with pytest.raises(SystemExit):
            compact(path)
    assert content(path) == before
    assert {problem.kind for problem in verify(path)} == {"debris"}
    write_set(path, [8], append=True)
    assert content(path)[:3] == before


def test_merging_small_shards_never_stops_a_save(tmp_path: Path):
    path = tmp_path / "set"
    for i in range(3):
        write_set(path, [i], append=True)
    damaged = shard_files(path)[1]
    flip(*blob_place(path, "latent 1"))
    flip(damaged, 40)  # in its header, so that it cannot be merged
    write_set(path, [3, 4], append=True)  # the eighth small shard is due
    assert len(open_cache(path)) == 5
    assert [sample for sample, _ in repair(path, accept_loss=True).samples] == [1]


def test_a_full_disk_leaves_the_last_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_set(tmp_path / "set", range(2))
    write_set(path, [2], append=True)
    before, files = content(path), listing(path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(repack, "_write_shard", full)
    with pytest.raises(CacheError, match="No space left on device; the last generation is unchanged"):
        compact(path)
    assert content(path) == before and listing(path) == files


def test_shards_used_by_an_unfinished_build_are_kept(tmp_path: Path):
    path = write_set(tmp_path / "set", range(2))
    write_set(path, [2], append=True)
    writer = CacheWriter(path)
    put_sample(writer, 9)
    writer.put("another", open_cache(path).entry("latent 1"), "latent")
    writer.flush()
    writer.close()
    kept = shard_files(path)[0]
    compact(path)
    assert kept.exists() and (path / segments.BUILD).is_dir()
    with CacheWriter(path, append=True) as writer:
        assert writer.has("another") and writer.has("latent 9")
