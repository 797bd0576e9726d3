"""export and duplicate: compact copies, with hard links of whole shards if possible."""

import os
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheError, duplicate, export, open_cache
from streamcache.dataset_cache.format import files
from streamcache.dataset_cache.format.manifest import read_manifest
from streamcache.dataset_cache.upkeep import clean, verify

from ...support.datasets import content, flip, folder_bytes, listing, shard_files, write_set

pytestmark = pytest.mark.usefixtures("platform")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_set(tmp_path / "my set ünï", range(5), provenance={"vae": "A"})


@pytest.fixture(params=["links", "no links"])
def links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(files, "HAS_LINKS", request.param == "links")
    return request.param == "links"


def test_an_export_is_the_same_cache_in_another_folder(path: Path, tmp_path: Path, links: bool):
    before, steps = listing(path), []
    report = export(path, tmp_path / "copy of it", lambda *step: steps.append(step))
    source, copy = open_cache(path), open_cache(tmp_path / "copy of it")
    assert (copy.id, copy.generation, copy.provenance) == (source.id, source.generation, source.provenance)
    assert content(copy) == content(source) and list(verify(tmp_path / "copy of it")) == []
    assert report.linked == (2 if links else 0) and report.samples == 5
    assert steps[-1][0] == steps[-1][1] and listing(path) == before


def test_a_duplicate_has_a_new_id(path: Path, tmp_path: Path):
    duplicate(path, tmp_path / "second")
    first, second = open_cache(path), open_cache(tmp_path / "second")
    assert first.id != second.id and first.generation != second.generation
    assert content(first) == content(second)
    del second
    write_set(tmp_path / "second", range(2))
    clean(tmp_path / "second", ["unused", "superseded"])
    assert len(content(path)) == 5


def test_only_used_entries_are_copied(path: Path, tmp_path: Path, links: bool):
    write_set(path, range(2))
    export(path, tmp_path / "copy")
    copy = open_cache(tmp_path / "copy")
    assert copy.has("latent 1") and not copy.has("latent 4")
    assert content(copy) == content(path) and list(verify(tmp_path / "copy")) == []
    fresh = write_set(tmp_path / "fresh", range(2))
    assert folder_bytes(tmp_path / "copy" / "shards") == folder_bytes(fresh / "shards")


def test_linked_shards_survive_the_removal_of_the_original(path: Path, tmp_path: Path):
    before = content(path)
    export(path, tmp_path / "copy")
    for file in [*shard_files(path), *shard_files(path, "t"), path / read_manifest(path).index_name]:
        file.unlink()
    assert content(tmp_path / "copy") == before


def test_the_next_copy_finishes_an_interrupted_one(path: Path, tmp_path: Path, links: bool):
    target = tmp_path / "copy"
    (target / "shards").mkdir(parents=True)
    for file in shard_files(path):
        (target / "shards" / file.name).write_bytes(b"half of it")
    export(path, target)
    assert content(target) == content(path)


def test_a_copy_never_replaces_an_existing_cache(path: Path, tmp_path: Path):
    for target in (path, write_set(tmp_path / "there", range(1))):
        with pytest.raises(CacheError, match="already contains a cache"):
            export(path, target)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CacheError, match="is a file"):
        duplicate(path, tmp_path / "file")


def test_a_copy_into_the_cache_itself_is_refused(path: Path):
    before = listing(path)
    with pytest.raises(CacheError, match="is inside the cache itself"):
        export(path, path / "shards" / "copy")
    assert listing(path) == before


def test_a_damaged_source_is_refused_and_leaves_no_dataset(path: Path, tmp_path: Path):
    os.truncate(shard_files(path)[0], 100)
    with pytest.raises(CacheError, match="expected"):
        export(path, tmp_path / "copy")
    assert not (tmp_path / "copy" / "dataset.json").exists()
    flip(path / read_manifest(path).index_name, 900)
    with pytest.raises(CacheError, match="index"):
        export(path, tmp_path / "other")
    assert not (tmp_path / "other").exists()
