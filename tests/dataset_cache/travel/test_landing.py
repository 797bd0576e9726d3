"""How files arrive: grown in a folder by one process at a time, and told from a cache while they do."""

import os
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheBusy, clean, open_cache, read_manifest, storage_at, verify
from streamcache.dataset_cache.travel import pull, unfinished_in
from streamcache.dataset_cache.travel.cargo import cargo_of
from streamcache.dataset_cache.travel.landing import landing_in

from ...support.datasets import write_set


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_set(tmp_path / "source", range(5))


def test_one_process_at_a_time_receives_files(source: Path, tmp_path: Path):
    landing = landing_in(storage_at(tmp_path / "folder"))
    try:
        with pytest.raises(CacheBusy, match="another push, pull or sync"):
            pull(source, tmp_path / "folder")
    finally:
        landing.close()
    assert pull(source, tmp_path / "folder").files == 3


def test_what_has_arrived_is_told_until_the_generation_is_whole(source: Path, tmp_path: Path):
    folder, manifest = tmp_path / "folder", read_manifest(source)
    assert unfinished_in(folder) is None
    landing = landing_in(storage_at(folder))
    landing.expect(manifest)
    cargo = cargo_of(manifest)[0]
    with landing.receive(cargo, False) as arriving:
        arriving.write((source / cargo.name).read_bytes()[:1000])
    assert "debris" not in {problem.kind for problem in verify(folder)}, "it is in use"
    landing.close()
    found = unfinished_in(folder)
    assert (found.manifest.generation, found.arrived) == (manifest.generation, 1000)
    assert found.total == sum(each.bytes for each in cargo_of(manifest))
    assert clean(folder, ["debris"]).bytes > 1000 and not list(folder.rglob("*.safetensors"))
    pull(source, folder)
    assert unfinished_in(folder) is None and len(open_cache(folder)) == 5


def test_a_file_that_is_larger_than_it_should_be_begins_again(source: Path, tmp_path: Path):
    cargo = cargo_of(read_manifest(source))[0]
    incoming = tmp_path / "folder/.travel/incoming"
    incoming.mkdir(parents=True)
    (incoming / cargo.name.rpartition("/")[2]).write_bytes(bytes(cargo.bytes + 1))
    landing = landing_in(storage_at(tmp_path / "folder"))
    assert landing.arrived(cargo) == 0
    with landing.receive(cargo, False) as arriving:
        assert arriving.size == 0 and list(arriving.kept()) == []
    landing.close()


def test_f6_what_was_pulled_is_on_the_disk_before_its_manifest_is(source: Path, tmp_path: Path, monkeypatch):
    synced, real = list[tuple[int, int]](), os.fsync

    def fsync(fd: int) -> None:
        real(fd)
        status = os.fstat(fd)
        synced.append((status.st_ino, status.st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    folder = tmp_path / "folder"
    pull(source, folder)
    places = [folder / each.name for each in cargo_of(read_manifest(folder))]
    files = [(path.stat().st_ino, path.stat().st_size) for path in (*places, folder / "dataset.json")]
    assert len(files) == 4 and set(files) <= set(synced), "each with all that was written"
    assert max(synced.index(file) for file in files[:-1]) < synced.index(files[-1])
