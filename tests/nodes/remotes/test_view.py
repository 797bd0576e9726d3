"""What this machine has of each remote cache: nothing, a part, or a generation that is the same, newer or older."""

from pathlib import Path
from typing import Any

import pytest

from streamcache.dataset_cache import read_manifest, resolve, storage_at
from streamcache.dataset_cache.travel import pull, push
from streamcache.dataset_cache.travel.cargo import cargo_of
from streamcache.dataset_cache.travel.landing import landing_in
from streamcache.nodes.remotes import view
from streamcache.nodes.remotes.roots import RemoteRoots

from ...support.datasets import write_set
from ...support.fault_proxy import FaultProxy
from ...support.joined import write_joined


@pytest.fixture
def rows(tmp_path: Path, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch):
    """The rows of the caches at the root, as they are now."""
    monkeypatch.setattr(view, "PATIENCE_SECONDS", 60.0)
    monkeypatch.setattr(view, "REMOTE_ROOTS", RemoteRoots())

    def look() -> list[dict[str, Any]]:
        (root,) = view.remote_rows([tmp_path / "caches"], again=True)
        assert root["state"] == "ready", root
        return root["caches"]

    return look


def shown(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["local"], row["relation"], row["local_name"]


def test_a_remote_cache_is_not_here_then_partly_then_whole(tmp_path: Path, rows):
    source = write_set(tmp_path / "elsewhere", range(3))
    place = resolve("studio/cats")
    push(source, place)
    (row,) = rows()
    assert shown(row) == ("none", "", "") and row["samples"] == 3 and row["bytes"] > 0
    folder, manifest = tmp_path / "caches/studio/cats", read_manifest(source)
    landing = landing_in(storage_at(folder))
    landing.expect(manifest)
    with landing.receive(cargo_of(manifest)[0], False) as arriving:
        arriving.write(bytes(500))
    landing.close()
    (row,) = rows()
    assert shown(row) == ("partly", "", "studio/cats") and row["arrived"] == 500
    pull(place, folder)
    assert shown(rows()[0]) == ("whole", "same", "studio/cats")


def test_the_size_of_a_remote_cache_counts_all_its_index_files(tmp_path: Path, rows):
    source = write_joined(tmp_path / "elsewhere", "segments")
    push(source, resolve("studio/cats"))
    files = [*source.glob("index-*"), *(source / "shards").iterdir()]
    assert rows()[0]["bytes"] == sum(file.stat().st_size for file in files)


def test_the_relation_follows_both_sides(tmp_path: Path, rows):
    here, place = write_set(tmp_path / "caches/my_set", range(3)), resolve("studio/cats")
    push(here, place)
    assert shown(rows()[0]) == ("whole", "same", "my_set")
    write_set(here, range(4))
    assert shown(rows()[0]) == ("whole", "ahead", "my_set")
    pull(place, tmp_path / "other")
    push(write_set(tmp_path / "other", range(5)), place)
    (row,) = rows()
    assert shown(row) == ("whole", "apart", "my_set")
    sides = {"there": (tmp_path / "other", row), "here": (here, row["here"])}
    for name, (path, side) in sides.items():
        manifest = read_manifest(path)
        assert manifest is not None
        assert (side["samples"], side["generation"]) == (manifest.counts["samples"], manifest.generation), name
        assert abs(side["published"] - (path / "dataset.json").stat().st_mtime) < 60, name


def test_an_older_copy_is_behind(tmp_path: Path, rows):
    source, place = write_set(tmp_path / "elsewhere", range(3)), resolve("studio/cats")
    push(source, place)
    pull(place, tmp_path / "caches/copy")
    push(write_set(source, range(4)), place)
    assert shown(rows()[0]) == ("whole", "behind", "copy")
