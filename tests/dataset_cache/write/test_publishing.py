"""Publishing: the lock, the step to a new generation, and what is removed after it."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheBusy, CacheError, CacheWriter, open_cache
from streamcache.dataset_cache.format import LocalStorage, segment, shard
from streamcache.dataset_cache.format.manifest import read_manifest
from streamcache.dataset_cache.upkeep import clean, compact, repair, verify
from streamcache.dataset_cache.write import publishing, repack

from ...support.datasets import content, flip, write_set
from ...support.samples import (
    assert_holds,
    sample,
    shard_files,
    write_cache,
)


def test_an_empty_dataset_can_be_published_and_opened(tmp_path):
    with CacheWriter(tmp_path / "set"):
        pass
    cache = open_cache(tmp_path / "set", check=True)
    assert (len(cache), list(cache), cache.buckets(), cache.fields) == (0, [], {}, ())
    write_cache(tmp_path / "set", 2, append=True)
    assert_holds(open_cache(tmp_path / "set"), range(2))


def test_publishing_midway_shows_the_samples_so_far(tmp_path):
    path = tmp_path / "set"
    with CacheWriter(path) as w:
        for i in range(6):
            w.add(**sample(i))
            if i % 2:
                w.publish()
                assert_holds(open_cache(path), range(i + 1))
        w.add(**sample(6))
        assert_holds(open_cache(path), range(6))
    assert_holds(open_cache(path, check=True), range(7))


def test_publishing_nothing_new_changes_nothing(tmp_path):
    path = write_cache(tmp_path / "set", 2)
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file() and file.name[0] != "."}
    with CacheWriter(path, append=True) as w:
        w.publish()
    after = {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file() and file.name[0] != "."}
    assert after == before and not (path / segment.BUILD).exists()


def test_a_finished_dataset_has_no_debris(tmp_path, platform):
    path = write_cache(tmp_path / "set", 3)
    open_cache(path)  # from now on readers are known by their leases
    for run in range(3):
        write_cache(path, 2, first=3 + run)
    names = sorted(file.name for file in path.iterdir() if file.name not in (".leases", ".lock"))
    assert names == sorted(["dataset.json", "shards", read_manifest(path).index_name])
    assert {file.name for file in shard_files(path)} == {listed.file for listed in read_manifest(path).shards}


@pytest.mark.parametrize(("place", "step"), [(LocalStorage, "move"), (segment, "seal")])
@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_publishing_that_failed_in_the_middle_can_be_tried_again(tmp_path, monkeypatch, place, step, fails_at):
    """Small shards are cut to size one after the other: those that were done before the failure count once."""
    monkeypatch.setattr(shard, "SHARD_BYTES", 1)
    with CacheWriter(tmp_path / "set") as w:
        for i in range(2):
            w.add(**sample(i))
        real, calls = getattr(place, step), []

        def fail(*args):
            calls.append(args)
            if len(calls) == fails_at:
                raise OSError(errno.EIO, "Input/output error")
            return real(*args)

        monkeypatch.setattr(place, step, fail)
        with pytest.raises(CacheError, match="Input/output error"):
            w.publish()
        w.add(**sample(2))
    assert_holds(open_cache(tmp_path / "set", check=True), range(3))


def test_a_second_writer_is_refused_with_the_name_of_the_first(tmp_path):
    with CacheWriter(tmp_path / "set") as w:
        w.add(**sample(0))
        with pytest.raises(CacheBusy, match=f"process {os.getpid()} on .* is writing to it"):
            CacheWriter(tmp_path / "set")
        w.add(**sample(1))
    assert_holds(open_cache(tmp_path / "set"), range(2))
    write_cache(tmp_path / "set", 1, first=2, append=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Saved with 10 samples, then with 4, and opened by a reader in between."""
    folder = write_set(tmp_path / "my set ünï", range(10))
    open_cache(folder)
    return write_set(folder, range(4))


def test_publishing_removes_neither_user_files_nor_linked_files(path: Path, tmp_path: Path):
    mine = path / "shards" / "a-copy.safetensors"
    mine.write_bytes(b"mine")
    write_set(path, range(1))
    assert mine.exists()
    other = write_set(tmp_path / "other", range(3))
    shutil.copytree(path / "shards", other / "shards", dirs_exist_ok=True)
    shutil.rmtree(path / "shards")
    os.symlink(other / "shards", path / "shards")
    with pytest.raises(CacheError, match="symbolic link"):
        write_set(path, range(2))
    assert len(content(other)) == 3


def test_shards_moved_by_a_killed_publisher_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_set(tmp_path / "set", range(2))
    write_set(path, [2], append=True)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "write_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_set(path, [7], append=True)
    assert compact(path).shards == (4, 2)
    with CacheWriter(path, append=True) as writer:
        assert writer.has("latent 7")
    assert list(verify(path)) == []


@pytest.mark.parametrize("upkeep", [compact, repair, lambda path: clean(path, ["debris", "unused", "superseded"])])
@pytest.mark.parametrize(
    ("module", "step", "folder"),
    [
        (repack, "_write_shard", None),
        (LocalStorage, "sync", ("shards",)),  # of the new shards
        (publishing, "write_index", None),
        (LocalStorage, "sync", ()),  # of the new index
        (publishing, "write_manifest", None),
    ],
)
def test_an_interrupt_at_any_step_leaves_the_last_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upkeep: Callable, module: object, step: str, folder: tuple | None
):
    path = write_set(tmp_path / "set", range(6))
    open_cache(path)
    write_set(path, range(3))
    write_set(path, [6], append=True)
    before = content(path)
    if upkeep is repair:
        flip(shard_files(path)[0], 40)

    def interrupt(*args: object) -> None:
        if folder is None or args[1:] == folder:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            upkeep(path)
    assert len(open_cache(path)) == 4
    if upkeep is not repair:
        assert content(path) == before
    upkeep(path)
    clean(path, ["debris", "superseded"])
    assert content(path) == before and list(verify(path)) == []


# Folders of other files


@pytest.mark.parametrize(
    "name", ["lost+found/x", "$RECYCLE.BIN/x", "System Volume Information/x", ".DS_Store", "Thumbs.db"]
)
def test_what_operating_systems_leave_in_a_folder_does_not_prevent_a_cache(tmp_path: Path, name: str):
    (tmp_path / "set" / name).parent.mkdir(parents=True)
    (tmp_path / "set" / name).write_text("x")
    assert len(open_cache(write_set(tmp_path / "set", range(2)))) == 2


def test_a_cache_can_be_started_in_a_folder_of_caches(tmp_path: Path):
    inner = write_set(tmp_path / "project" / "more" / "a", range(3))
    (tmp_path / "project" / "empty").mkdir()
    write_set(tmp_path / "project", range(2))
    clean(tmp_path / "project", ["debris", "superseded", "unused"])
    assert len(open_cache(tmp_path / "project")) == 2 and len(content(inner)) == 3


def test_a_folder_with_caches_and_other_files_is_refused(tmp_path: Path):
    write_set(tmp_path / "project" / "more" / "a", range(3))
    (tmp_path / "project" / "more" / "photo.jpg").write_text("mine")
    with pytest.raises(CacheError, match="is not a cache and contains more"):
        write_set(tmp_path / "project", range(2))
