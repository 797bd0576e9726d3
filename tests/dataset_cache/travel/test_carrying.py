"""Carrying several files at once: what fails or is interrupted stops all, and what arrived is kept."""

from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheError, read_manifest, storage_at
from streamcache.dataset_cache.travel import Travel, carrying, pull
from streamcache.dataset_cache.travel.cargo import cargo_of
from streamcache.dataset_cache.travel.carrying import carry, find_damaged
from streamcache.dataset_cache.travel.landing import landing_in

from ...support.datasets import flip, write_set


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(carrying, "PART_BYTES", 1000)
    return write_set(tmp_path / "source", range(8))


def test_progress_counts_every_byte_once(source: Path, tmp_path: Path):
    cargoes, steps = cargo_of(read_manifest(source)), []
    landing = landing_in(storage_at(tmp_path / "folder"))
    meter = carry(storage_at(source), landing, cargoes, lambda *step: steps.append(step))
    landing.close()
    total = sum(each.bytes for each in cargoes)
    assert steps[-1] == (total, total) and (meter.done, meter.carried) == (total, total)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


def test_what_progress_raises_stops_all_and_keeps_what_arrived(source: Path, tmp_path: Path):
    class Canceled(Exception):
        pass

    def cancel(done: int, total: int) -> None:
        raise Canceled

    with pytest.raises(Canceled):
        pull(source, tmp_path / "folder", Travel(progress=cancel))
    assert not (tmp_path / "folder/dataset.json").exists()
    assert pull(source, tmp_path / "folder").files == 3


def test_one_damaged_file_is_named_and_nothing_is_published(source: Path, tmp_path: Path):
    cargo = cargo_of(read_manifest(source))[0]
    flip(source / cargo.name, cargo.bytes - 50)
    with pytest.raises(CacheError, match=f"{cargo.name}: .* do not match"):
        pull(source, tmp_path / "folder")
    assert [each.name for each in find_damaged(storage_at(source), cargo_of(read_manifest(source)), None)] == [
        cargo.name
    ]


def test_a_file_of_another_size_is_refused_before_it_is_carried(source: Path, tmp_path: Path):
    cargo = cargo_of(read_manifest(source))[0]
    with (source / cargo.name).open("ab") as file:
        file.write(b"x")
    with pytest.raises(CacheError, match=f"has {cargo.bytes + 1:,} bytes, {cargo.bytes:,} expected"):
        pull(source, tmp_path / "folder")
