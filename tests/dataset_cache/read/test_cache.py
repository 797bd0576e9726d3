"""The reader: opens from metadata alone, reads just what is asked for, keeps nothing, and keeps its generation."""

import gc
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from streamcache.dataset_cache import Bucket, Cache, CacheError, CacheWriter, open_cache
from streamcache.dataset_cache.format import NO_BUCKET, LocalStorage, OpenFile, shard
from streamcache.dataset_cache.format.manifest import read_manifest
from streamcache.dataset_cache.read import leases
from streamcache.dataset_cache.read import shard_files as files
from streamcache.dataset_cache.read.leases import Lease, holders
from streamcache.dataset_cache.write.repack import merge_small

from ...support.platforms import WINDOWS
from ...support.samples import (
    BUCKETS,
    EVERY_DTYPE,
    assert_holds,
    bits,
    conditioning,
    latent,
    raw,
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


def test_samples_are_a_sequence(path):
    cache = open_cache(path)
    assert cache[-1].index == 11 and cache[np.int64(3)].index == 3 and [s.index for s in cache] == list(range(12))
    for i in (12, -13, 10**12):
        with pytest.raises(IndexError, match=f"sample {i} does not exist: the dataset has 12"):
            cache[i]
    for use in (cache.source, cache.captions, lambda i: cache.will_need([i])):
        with pytest.raises(IndexError):
            use(12)


def test_c5_buckets_are_those_of_eager_data(tmp_path):
    given = [latent(i, BUCKETS[i % 3]) for i in range(10)]
    given += [{"samples": bits((1, 16, 5, 4, 4), torch.bfloat16, 5)}, {"samples": bits((1, 4, 8, 8), torch.float32, 6)}]
    with CacheWriter(tmp_path / "set") as w:
        for one in given:
            w.add(latent={**one, "noise_mask": bits((1, 8, 8))} if len(one) % 2 else one)
        w.add(conditioning=conditioning(0))
        w.add(latent={"other": bits((3,))})
    eager: dict[Bucket, list[int]] = {}
    for i, one in enumerate(given):
        eager.setdefault(Bucket(tuple(one["samples"].shape[1:]), one["samples"].dtype), []).append(i)
    cache = open_cache(tmp_path / "set")
    assert {bucket: found.tolist() for bucket, found in cache.buckets().items()} == eager
    assert all(found.dtype == np.int64 for found in cache.buckets().values())
    assert (cache.column("bucket")[len(given) :] == NO_BUCKET).all(), "samples without a latent are in no bucket"
    for bucket, indices in cache.buckets().items():
        batch = cache.read_batch(indices)
        assert tuple(batch.latents.shape[1:]) == bucket.shape and batch.latents.dtype == bucket.dtype
        assert same(list(batch.latents.split(1)), [given[i]["samples"] for i in indices])


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


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A dataset of samples in every shape that makes reading hard, with what was given for each."""
    draw = random.Random(1)
    given = []
    for i in range(60):
        fields: dict[str, Any] = {"latent": {"samples": bits((1, 4, 8, 8), seed=i)}}
        if draw.random() < 0.3:
            fields["latent"] = {"first": bits((draw.randint(0, 3), 5), torch.uint8, i), **fields["latent"]}
        if draw.random() < 0.3:
            fields["latent"]["noise_mask"] = bits((1, draw.randint(0, 9)), draw.choice(EVERY_DTYPE), i)
        if draw.random() < 0.8:
            fields["conditioning"] = conditioning(draw.randint(0, 5), draw.randint(1, 3))
        if draw.random() < 0.3:
            fields["mask"] = draw.choice(
                [bits((), torch.int64, i), bits((0,)), bits((7,), torch.bool, i % 3), 5, "text"]
            )
        if draw.random() < 0.2:
            fields["nothing"] = draw.choice([None, [], {"a": None}, (1, "x")])
        if draw.random() < 0.2:
            fields["thumbnail"] = bits((3, 3), torch.uint8, i)
        given.append({name: value for name, value in fields.items() if value is not None})
    path = tmp_path_factory.mktemp("odd") / "set"
    for first in range(0, 60, 20):
        with CacheWriter(path, append=True) as w:
            for fields in given[first : first + 20]:
                w.add(**fields)
    return path, given


@pytest.mark.parametrize("check", [False, True], ids=["unchecked", "checked"])
def test_a_batch_equals_its_samples(odd, check):
    path, given = odd
    cache = open_cache(path, check=check)
    buffers = cache.buffers(4)
    draw = random.Random(2)
    for n in range(60):
        chosen = [draw.randrange(60) for _ in range(draw.randint(1, 6))]
        fields = None if n % 3 else draw.sample(cache.fields, draw.randint(1, len(cache.fields)))
        batch = cache.read_batch(chosen, fields=fields, buffers=buffers if n % 2 else None)
        names = [name for name in cache.fields if name != "thumbnail"] if fields is None else fields
        assert list(batch.fields) == list(names) and batch.indices == chosen and len(batch) == len(chosen)
        for name in names:
            assert same(batch.fields[name], [given[i].get(name) for i in chosen]), f"{name} of {chosen}"
        if "latent" in names:
            assert same(batch.latents, torch.cat([given[i]["latent"]["samples"] for i in chosen]))
        else:
            assert batch.latents is None
    for one, fields in zip(cache, given, strict=True):
        assert same(dict(one.realize().fields), {name: fields[name] for name in cache.fields if name in fields})


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


def test_c9_a_batch_of_several_buckets_is_refused(path):
    with pytest.raises(CacheError, match=r"samples \[0, 1\] are in 2 different buckets"):
        open_cache(path).read_batch([0, 1])


def test_a_batch_can_be_written_to_without_harm(path):
    cache = open_cache(path)
    batch = cache.read_batch([0, 3])
    batch.latents.zero_()
    for one in batch.conditionings:
        one[0][0].zero_()
    assert same(cache[0].latent, latent(0)) and same(cache[3].conditioning, conditioning(3))
    assert same(open_cache(path).read_batch([0]).conditionings, [conditioning(0)])


# Many shards, threads, processes


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


def lease_files(path: Path) -> list[Path]:
    return sorted((path / leases.LEASES).glob("*"))


def test_a_lease_exists_as_long_as_the_cache_or_its_tensors(path):
    cache = open_cache(path)
    (lease,) = lease_files(path)
    assert lease.name.startswith(f"{cache.generation}.") and f".{os.getpid()}." in lease.name
    (holder,) = holders(path)
    assert (holder.generation, holder.pid) == (cache.generation, os.getpid())
    tensor = cache[0].latent["samples"]
    del cache
    gc.collect()
    assert lease_files(path) == [lease], "the tensor still needs the files"
    del tensor
    gc.collect()
    assert lease_files(path) == []


def test_a_superseded_generation_is_removed_with_its_last_reader(path):
    cache = open_cache(path)
    old_index, old_shards = path / read_manifest(path).index_name, shard_files(path)
    write_cache(path, 2, first=50)
    assert old_index.exists() and all(file.exists() for file in old_shards)
    assert_holds(cache, range(12))
    del cache
    gc.collect()
    write_cache(path, 2, first=60)
    assert not old_index.exists()
    assert len(list(path.glob("index-*"))) == 1


@pytest.fixture
def lease(path: Path) -> Iterator[Lease]:
    lease = Lease(path, "0" * 32)
    yield lease
    lease.release()


def test_a_heartbeat_renews_a_lease_and_restores_a_removed_one(path, lease):
    (file,) = lease_files(path)
    os.utime(file, (0, 0))
    lease.beat()
    assert time.time() - file.stat().st_mtime < 60
    file.unlink()  # taken for stale, as after a long sleep
    lease.beat()
    assert file.exists()
    lease.release()
    lease.beat()
    assert not file.exists(), "what was given back stays gone"


def test_one_thread_touches_all_leases(path, lease, monkeypatch):
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.01)
    (file,) = lease_files(path)
    os.utime(file, (0, 0))
    beat = threading.Thread(target=leases._Heartbeat._run, daemon=True)
    monkeypatch.setattr(leases, "_live", [lease])
    beat.start()
    end = time.monotonic() + 30
    while file.stat().st_mtime == 0 and time.monotonic() < end:
        time.sleep(0.01)
    assert time.time() - file.stat().st_mtime < 60
    assert [t.name for t in threading.enumerate()].count("streamcache leases") <= 1
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 10**6)


def test_stale_leases_are_ignored_and_removed(path):
    folder = path / leases.LEASES
    folder.mkdir(exist_ok=True)
    generation = read_manifest(path).generation
    old = folder / f"{generation}.elsewhere.1.00000000"
    young = folder / f"{generation}.elsewhere.2.00000000"
    for file in (old, young, folder / "not a lease", folder / f"{generation}.elsewhere.x.00000000"):
        file.touch()
    os.utime(old, (time.time() - leases.STALE_SECONDS - 5,) * 2)
    assert [holder.pid for holder in holders(path)] == [2]
    assert not old.exists() and young.exists()
    assert str(holders(path)[0]) == "process 2 on elsewhere"


def test_only_a_live_lease_protects_a_generation(path):
    before = read_manifest(path)
    folder = path / leases.LEASES
    folder.mkdir(exist_ok=True)
    far = folder / f"{before.generation}.elsewhere.1.00000000"
    far.touch()
    write_cache(path, 1, first=50)
    assert (path / before.index_name).exists()
    os.utime(far, (0, 0))
    write_cache(path, 1, first=51)
    assert not (path / before.index_name).exists()


def test_an_unpublished_build_reports_how_much_is_ready(tmp_path):
    writer = CacheWriter(tmp_path / "set")
    for i in range(3):
        writer.add(**sample(i))
    writer.flush()
    with pytest.raises(CacheError, match=r"never published; 6 entries \(0.0 MB\) of its build are ready.*run the same"):
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


def test_every_bit_of_a_latent_comes_from_the_file(path):
    """The bytes in the shard are those that were given, in the order that they were given."""
    content = b"".join(file.read_bytes() for file in shard_files(path))
    for i in range(12):
        assert raw(latent(i)["samples"]) in content
