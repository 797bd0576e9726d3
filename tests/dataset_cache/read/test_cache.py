"""The reader: opens from metadata alone, reads just what is asked for, keeps nothing, and keeps its generation."""

import gc
import pickle
import random
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import SUPERSEDED, CacheError, CacheWriter, Subset, clean, open_cache
from streamcache.dataset_cache.format import LocalStorage, OpenFile
from streamcache.dataset_cache.format.manifest import read_manifest
from streamcache.dataset_cache.read.leases import holders

from ...support.samples import (
    BUCKETS,
    assert_holds,
    conditioning,
    latent,
    same,
    sample,
    shard_files,
    write_cache,
)

pytestmark = pytest.mark.usefixtures("platform")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cache(tmp_path_factory.mktemp("template") / "set", 12)


@pytest.fixture
def path(dataset: Path, tmp_path: Path) -> Path:
    return shutil.copytree(dataset, tmp_path / "set")


# Opening


def test_c2_a_dataset_opens_without_its_shards(path):
    """Nothing but the manifest and the index is needed for all that is metadata."""
    shutil.rmtree(path / "shards")
    cache = open_cache(path)
    assert (len(cache), cache.fields, len(cache.buckets())) == (12, ("latent", "conditioning"), 3)
    found = cache[3]
    assert (found.caption, found.source, found.original_size) == ("caption 3", "00003.png", (643, 480))
    assert found.latent["samples"].shape == BUCKETS[0] and found.conditioning[0][1]["width"] == 515
    assert cache.source(5) == "00005.png" and cache.captions(5) == ["caption 5"]
    with pytest.raises(CacheError, match="missing"):
        found.latent["samples"].sum()


def test_opening_reads_no_byte_of_a_shard(path, monkeypatch):
    opened: list[str] = []
    real = LocalStorage.open

    def watched(storage: LocalStorage, name: str) -> OpenFile:
        opened.append(name)
        return real(storage, name)

    monkeypatch.setattr(LocalStorage, "open", watched)
    cache = open_cache(path)
    (cache.buckets(), [s.latent["samples"].shape for s in cache], cache.variants("latent"))
    assert opened == ["dataset.json", cache.manifest.index_name]
    cache[0].realize()
    assert len(opened) == 3 and opened[2].startswith("shards/s-00000-")


def test_c9_a_missing_or_empty_folder_is_reported(tmp_path):
    (tmp_path / "empty").mkdir()
    for name, message in (("missing", "no such cache"), ("empty", "no dataset.json")):
        with pytest.raises(CacheError, match=message):
            open_cache(tmp_path / name)


def test_c9_a_missing_index_is_an_error_that_names_it(path):
    index = next(path.glob("index-*"))
    index.unlink()
    with pytest.raises(CacheError, match=rf"{index.name}.*missing"):
        open_cache(path)


# Samples, columns, buckets


def test_c9_missing_columns_and_fields_are_named(path):
    cache = open_cache(path)
    for name in ("variants", "caption", "nonsense"):
        with pytest.raises(CacheError, match=f"no column '{name}'.*bucket"):
            cache.column(name)
    with pytest.raises(CacheError, match="no field 'mask'.*latent, conditioning"):
        cache.read_batch([0], fields=["mask"])
    with pytest.raises(CacheError, match="at least one sample"):
        cache.read_batch([])
    with pytest.raises(CacheError, match="sample 12 does not exist: the dataset has 12"):
        cache.read_batch([12])
    with pytest.raises(CacheError, match="'missing'"):
        cache.entry("missing")
    assert cache.variants("mask").tolist() == [0] * 12
    assert not cache.column("repeats").flags.writeable


# Batches


def test_reused_buffers_keep_their_memory_and_fresh_tensors_their_content(path):
    cache = open_cache(path)
    buffers = cache.buffers(2)
    fresh = cache.read_batch([0, 3])
    first = cache.read_batch([0, 3], buffers=buffers)
    place = first.latents.data_ptr()
    second = cache.read_batch([6, 9], buffers=buffers)
    assert second.latents.data_ptr() == place
    assert same(second.latents, torch.cat([latent(6)["samples"], latent(9)["samples"]]))
    assert same(fresh.latents, torch.cat([latent(0)["samples"], latent(3)["samples"]]))
    assert same(fresh.conditionings, [conditioning(0), conditioning(3)])


# Many shards, threads, processes


def test_threads_with_buffers_of_their_own_do_not_mix(path):
    cache = open_cache(path)

    def read(seed: int) -> None:
        buffers, draw = cache.buffers(2), random.Random(seed)
        for _ in range(60):
            chosen = draw.sample(range(draw.randrange(3), 12, 3), 2)
            batch = cache.read_batch(chosen, buffers=buffers)
            assert same(batch.latents, torch.cat([latent(i)["samples"] for i in chosen]))
            assert same(batch.conditionings, [conditioning(i) for i in chosen])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(read, range(6)))


# Shards that change under a reader


# Generations and leases


def test_a_reader_keeps_its_generation_while_writers_publish(path):
    first = open_cache(path)
    readers = [(first, range(12))]
    for run in range(4):
        write_cache(path, 3, first=100 + 3 * run)
        readers.append((open_cache(path), range(100 + 3 * run, 103 + 3 * run)))
    for cache, numbers in readers:
        assert_holds(cache, numbers)
    assert len({cache.generation for cache, _ in readers}) == 5
    assert len({cache.id for cache, _ in readers}) == 1


def test_readers_that_open_while_a_writer_publishes_see_complete_generations(tmp_path):
    path = write_cache(tmp_path / "set", 3)
    stop, errors = threading.Event(), []

    def read() -> None:
        try:
            while not stop.is_set():
                cache = open_cache(path, check=True)
                start = int(cache[0].source.removesuffix(".png"))
                assert_holds(cache, range(start, start + len(cache)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 1.5
    for run in range(10_000):
        write_cache(path, 2 + run % 3, first=10 * run)
        if time.monotonic() > end or errors:
            break
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_an_unpublished_build_reports_how_much_is_ready(tmp_path):
    writer = CacheWriter(tmp_path / "set")
    for i in range(3):
        writer.add(**sample(i))
    writer.flush()
    with pytest.raises(CacheError, match=r"never published; 6 entries \([^)]+\) of its build are ready.*run the same"):
        open_cache(tmp_path / "set")
    writer.close()
    with pytest.raises(CacheError, match="6 entries"):
        open_cache(tmp_path / "set")


def test_a_copied_folder_is_the_same_cache(path, tmp_path):
    shutil.copytree(path, tmp_path / "copy")
    cache = open_cache(tmp_path / "copy", check=True)
    assert_holds(cache, range(12))
    assert cache.generation == open_cache(path).generation


def test_a_copy_of_the_files_in_a_manifest_is_complete(path, tmp_path):
    """The hidden folders are not needed, nor is anything that the manifest does not name."""
    manifest = read_manifest(path)
    (tmp_path / "copy" / "shards").mkdir(parents=True)
    for name in ("dataset.json", manifest.index_name, *(f"shards/{listed.file}" for listed in manifest.shards)):
        shutil.copy(path / name, tmp_path / "copy" / name)
    assert_holds(open_cache(tmp_path / "copy", check=True), range(12))


def test_hints_change_nothing(path):
    cache = open_cache(path)
    cache.will_need(range(12))
    cache.will_need([])
    cache.will_need([1, 0], {"conditioning": [0, 0]})
    with pytest.raises(CacheError, match="variant 9"):
        cache.will_need([1], {"conditioning": [9]})
    assert_holds(cache, range(12))


# Copies, slices, closing


def test_a_pickled_cache_opens_the_same_generation(path):
    cache = open_cache(path)
    write_cache(path, 2, first=50)  # a newer one
    twin = pickle.loads(pickle.dumps(cache))
    assert twin.generation == cache.generation != open_cache(path).generation
    assert_holds(twin, range(12))
    part = pickle.loads(pickle.dumps(cache[3:5]))
    assert [s.source for s in part] == [s.source for s in cache[3:5]] and part.generation == cache[3:5].generation


def test_f8_copies_check_what_they_read_if_the_cache_does(path):
    twins = [
        pickle.loads(pickle.dumps(one)) for one in (open_cache(path, check=True), open_cache(path, check=True)[2:])
    ]
    (shard,) = shard_files(path)
    data = shard.read_bytes()
    shard.write_bytes(data[:-5000] + bytes(byte ^ 255 for byte in data[-5000:]))
    for twin in twins:
        with pytest.raises(CacheError, match="damaged"):
            [sample.realize() for sample in twin]


def test_f8_a_subset_of_a_subset_is_the_same_in_another_process(path):
    part = Subset(Subset(open_cache(path), [7, 1, 4, 9]), [3, 0])
    twin = pickle.loads(pickle.dumps(part))
    assert [s.source for s in twin] == ["00009.png", "00007.png"] and twin.generation == part.generation
    assert not twin.indices.flags.writeable and twin[1:][0].source == "00007.png"


def test_f8_a_closed_cache_cannot_be_copied(path):
    cache = open_cache(path)
    part = cache[2:5]
    cache.close()
    for closed in (cache, part):
        with pytest.raises(CacheError, match="this cache is closed"):
            pickle.dumps(closed)


def test_a_pickled_sample_contains_its_tensors(path):
    cache = open_cache(path)
    data = pickle.dumps(cache[4])
    cache.close()
    assert same(pickle.loads(data).latent, open_cache(path)[4].realize().latent)


def test_a_pickled_batch_contains_its_tensors_and_captions(path):
    cache = open_cache(path)
    rows = max(cache.buckets().values(), key=len)[:2]
    batch = cache.read_batch(rows)
    twin = pickle.loads(pickle.dumps(batch))
    assert same(twin.latents, batch.latents) and twin.captions == batch.captions
    assert twin.indices == batch.indices and same(twin.conditionings, batch.conditionings)


def test_a_generation_that_is_gone_cannot_be_unpickled(path):
    data = pickle.dumps(open_cache(path))
    gc.collect()
    write_cache(path, 2, first=50)
    clean(path, [SUPERSEDED])
    with pytest.raises(CacheError, match="cannot be opened again"):
        pickle.loads(data)


def test_a_slice_is_a_view(path):
    cache = open_cache(path)
    names = [s.source for s in cache]
    assert [s.source for s in cache[2:10]] == names[2:10] and len(cache[2:10]) == 8
    assert [s.source for s in cache[::-3]] == names[::-3]
    assert [s.source for s in cache[2:10][1:3]] == names[3:5]
    assert len(cache[5:5]) == 0


def test_a_closed_cache_releases_its_lease_and_refuses_to_read(path):
    with open_cache(path) as cache:
        waiting = cache[0].latent["samples"]
        assert len(holders(path)) == 1
    assert not holders(path) and "12 samples" in repr(cache)
    for use in (lambda: len(cache), lambda: cache[0], lambda: cache.read_batch([0]), waiting.clone):
        with pytest.raises(CacheError, match="this cache is closed; open it again"):
            use()
    cache.close()
    shutil.rmtree(path)
