"""Leases: the heart that keeps them alive does not stop while readers come."""

import gc
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamcache.dataset_cache import open_cache
from streamcache.dataset_cache.format.manifest import read_manifest
from streamcache.dataset_cache.read import leases
from streamcache.dataset_cache.read.leases import Lease, holders

from ...support.samples import (
    assert_holds,
    shard_files,
    write_cache,
)


def test_new_readers_do_not_stop_the_heartbeat(tmp_path: Path):
    kept = [Lease(tmp_path, "0" * 32) for _ in range(50)]
    stop, errors = threading.Event(), []

    def beat() -> None:
        try:
            while not stop.is_set():
                leases._beat_all()
        except RuntimeError as error:  # the set of leases changed its size
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    heart = threading.Thread(target=beat)
    heart.start()
    try:
        kept += [Lease(tmp_path, "0" * 32) for _ in range(500)]
    finally:
        stop.set()
        heart.join()
        sys.setswitchinterval(interval)
    assert not errors and len(kept) == 550


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cache(tmp_path_factory.mktemp("template") / "set", 12)


@pytest.fixture
def path(dataset: Path, tmp_path: Path) -> Path:
    return shutil.copytree(dataset, tmp_path / "set")


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
