"""The open shards of a generation: few handles, many threads, and files that change underneath."""

import gc
import os
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from streamcache.dataset_cache import Cache, CacheError, open_cache
from streamcache.dataset_cache.format import shard
from streamcache.dataset_cache.read import shard_files as files
from streamcache.dataset_cache.write.repack import merge_small

from ...support.platforms import WINDOWS
from ...support.samples import (
    assert_holds,
    conditioning,
    latent,
    same,
    shard_files,
    write_cache,
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cache(tmp_path_factory.mktemp("template") / "set", 12)


@pytest.fixture
def path(dataset: Path, tmp_path: Path) -> Path:
    return shutil.copytree(dataset, tmp_path / "set")


@pytest.fixture(scope="module")
def scattered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with a shard for every tensor, which are not merged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard, "SHARD_BYTES", 1)
        patch.setitem(merge_small.__globals__, "SMALL_SHARDS", 10_000)
        path = write_cache(tmp_path_factory.mktemp("template") / "many", 8)
    assert len(shard_files(path)) == 24
    return path


@pytest.fixture
def many_shards(scattered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "MAX_OPEN", 3)
    return shutil.copytree(scattered, tmp_path / "many")


def open_shards(path: Path) -> int:
    return sum(Path(file.path).parent == path / "shards" for file in psutil.Process().open_files())


def test_any_number_of_shards_is_read_with_few_handles(many_shards):
    cache = open_cache(many_shards)
    for _ in range(3):
        assert_holds(cache, range(8))
        for i in range(8):
            cache.read_batch([i])
        assert open_shards(many_shards) <= 3
    del cache
    gc.collect()
    assert open_shards(many_shards) == 0


def test_many_threads_read_many_shards(many_shards):
    cache = open_cache(many_shards, check=True)

    def read(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(40):
            i = draw.randrange(8)
            assert same(cache[i].realize().latent, latent(i))
            batch = cache.read_batch([i, (i + 3) % 8], fields=["conditioning"])
            assert same(batch.conditionings, [conditioning(i), conditioning((i + 3) % 8)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))


def test_a_shard_deleted_under_a_reader_is_an_error_or_the_old_data(many_shards, platform):
    cache = open_cache(many_shards)
    cache[0].realize()
    for file in shard_files(many_shards):
        try:
            file.unlink()
        except PermissionError:
            assert platform == WINDOWS
    results = [outcome(cache, i) for i in range(8)]
    assert set(results) <= {"old", "CacheError"} and results[0] == "old" and "CacheError" in results
    assert results == [outcome(cache, i) for i in range(8)] or platform != WINDOWS


def outcome(cache: Cache, i: int) -> str:
    try:
        found = cache[i].realize()
        batch = cache.read_batch([i])
    except CacheError as error:
        assert any(word in str(error) for word in ("missing", "replaced", "bytes", "ends")), error
        return "CacheError"
    assert same(found.latent, latent(i)) and same(batch.latents, latent(i)["samples"])
    assert same(found.conditioning, conditioning(i))
    return "old"


@pytest.mark.parametrize("how", ["replaced", "swapped", "cut", "emptied", "grown"])
def test_a_shard_changed_under_a_reader_is_an_error_or_the_old_data(many_shards, tmp_path, how):
    cache = open_cache(many_shards)
    assert outcome(cache, 3) == "old"
    contents = [file.read_bytes() for file in shard_files(many_shards)]
    for n, file in enumerate(shard_files(many_shards)):
        if how == "cut":
            os.truncate(file, len(contents[n]) // 2)
            continue
        put = {"replaced": contents[n], "swapped": contents[n - 1], "emptied": b"", "grown": contents[n] + bytes(64)}[
            how
        ]
        temporary = tmp_path / "new"
        temporary.write_bytes(put)
        try:
            os.replace(temporary, file)
        except PermissionError:
            continue  # it is open, on a system that locks it: it stays as it was
    results = [outcome(cache, i) for i in range(8)]
    assert set(results) <= {"old", "CacheError"}
    if how in ("cut", "emptied"):
        assert "CacheError" in results


def test_a_restored_shard_is_read_again(many_shards, tmp_path):
    cache = open_cache(many_shards)
    shutil.move(many_shards / "shards", tmp_path / "away")
    assert outcome(cache, 7) == "CacheError"
    shutil.move(tmp_path / "away", many_shards / "shards")
    assert [outcome(cache, i) for i in range(8)] == ["old"] * 8
