"""Races between readers and cleanup: a reader gets a complete generation, or an error."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheBusy, open_cache
from streamcache.dataset_cache.format import LocalStorage
from streamcache.dataset_cache.read import leases
from streamcache.dataset_cache.read import opening as reader
from streamcache.dataset_cache.upkeep import clean, repair, verify
from streamcache.dataset_cache.write import publishing
from streamcache.dataset_cache.write.publishing import current_publisher

from ..support.datasets import content, write_set


def test_reader_racing_with_cleanup_opens_the_new_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_set(tmp_path / "set", range(6))
    doomed: list[Path] = []
    take_lease, open_index = reader.Lease, reader.open_index

    remove = LocalStorage.remove

    def remember(storage: LocalStorage, name: str) -> bool:
        if not publishing.index_generation(name) and not name.startswith("shards/"):
            return remove(storage, name)
        doomed.append(storage.path / name)
        return True

    def publish_before_the_lease(*args: object) -> object:
        monkeypatch.setattr(reader, "Lease", take_lease)
        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, "remove", remember)
            write_set(path, range(2))
        return take_lease(*args)

    def remove_after_the_opening(*args: object) -> object:
        index = open_index(*args)
        while doomed:
            doomed.pop().unlink(missing_ok=True)
        return index

    monkeypatch.setattr(reader, "Lease", publish_before_the_lease)
    monkeypatch.setattr(reader, "open_index", remove_after_the_opening)
    assert len(open_cache(path)) == 2


def test_a_reader_that_opens_during_a_clean_keeps_its_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    module = sys.modules[clean.__module__]
    path = write_set(tmp_path / "set", range(6))
    open_cache(path)
    write_set(path, range(2))
    before = content(path)
    write, readers = module.write_packing, []

    def open_then_write(*args: object) -> None:
        readers.append(open_cache(path))
        write(*args)

    monkeypatch.setattr(module, "write_packing", open_then_write)
    with pytest.raises(CacheBusy, match="opened it meanwhile"):
        clean(path, ["unused"])
    assert content(readers[0]) == before == content(path)
    readers.clear()
    clean(path, ["superseded"])
    assert content(path) == before and list(verify(path)) == []


def test_probing_a_lock_does_not_stop_a_writer(tmp_path: Path):
    path = write_set(tmp_path / "set", range(2))
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.01):
            current_publisher(path)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(20):
            repair(path, accept_loss=True)
    finally:
        stop.set()
        watcher.join()


def test_a_lease_with_a_heartbeat_ends_with_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_set(tmp_path / "set", range(2))
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.01)
    cache = open_cache(path)
    (file,) = (path / leases.LEASES).iterdir()
    os.utime(file, (1, 1))
    threading.Thread(target=leases._Heartbeat._run, daemon=True).start()
    deadline = time.monotonic() + 60
    while file.stat().st_mtime == 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert file.stat().st_mtime > 1
    del cache
    while file.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not file.exists()
