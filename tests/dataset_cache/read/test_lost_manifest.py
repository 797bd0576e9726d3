"""A cache whose dataset.json is lost keeps its index and shards: nothing is written among them or removed."""

import shutil
from pathlib import Path

import pytest

from streamcache.cli.main import main
from streamcache.dataset_cache import (
    CATEGORIES,
    CacheError,
    CacheWriter,
    clean,
    duplicate,
    encode,
    open_cache,
    preview_clean,
)
from streamcache.dataset_cache.upkeep import repair, verify
from streamcache.dataset_cache.write import publishing

from ...support.datasets import content, listing, put_sample, write_set

LOST = r"dataset\.json is missing, but index-\w+\.safetensors and 2 shards \(.*\) .* restore dataset\.json .*move"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = write_set(tmp_path / "lost", range(5))
    (folder / "dataset.json").unlink()
    return folder


def test_a_lost_manifest_is_refused_by_everything_that_writes(path: Path, tmp_path: Path, plan, three):
    other, before = write_set(tmp_path / "other", range(3)), listing(path)
    attempts = (
        lambda: CacheWriter(path),
        lambda: encode(plan(), path),
        lambda: duplicate(other, path),
        lambda: repair(path),
        lambda: open_cache(path),
    )
    for attempt in attempts:
        with pytest.raises(CacheError, match=LOST):
            attempt()
    assert listing(path) == before


def test_a_lost_manifest_is_reported_by_verify(path: Path, capsys: pytest.CaptureFixture[str]):
    (problem,) = verify(path)
    assert problem.place == "dataset.json" and problem.kind == "missing" and "restore dataset.json" in problem.what
    assert main(["verify", "--repair", str(path)]) == 1
    assert "restore dataset.json" in "".join(capsys.readouterr())


def test_clean_does_not_take_shards_without_a_manifest_for_leftovers(path: Path):
    assert preview_clean(path).bytes == 0
    clean(path, CATEGORIES)
    assert len(list((path / "shards").iterdir())) == 2 and list(path.glob("index-*"))


@pytest.mark.parametrize("text", [b"", b"\0" * 100])
def test_an_empty_manifest_is_refused_with_the_remedy(path: Path, text: bytes):
    (path / "dataset.json").write_bytes(text)
    before = listing(path)
    for attempt in (lambda: CacheWriter(path), lambda: open_cache(path), lambda: preview_clean(path)):
        with pytest.raises(CacheError, match=r"dataset\.json: is empty; restore it from a copy"):
            attempt()
    assert listing(path) == before


def test_a_lost_manifest_is_noticed_although_there_is_an_unfinished_build(tmp_path: Path):
    folder = write_set(tmp_path / "more", range(5))
    writer = CacheWriter(folder)
    put_sample(writer, 7)
    writer.close()
    (folder / "dataset.json").unlink()
    with pytest.raises(CacheError, match="dataset.json is missing, but"):
        CacheWriter(folder)


def test_a_first_publication_that_was_interrupted_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "new"
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "write_manifest", fail)
        with pytest.raises(KeyboardInterrupt):
            write_set(folder, range(5))
    assert list(folder.glob("index-*")) and not (folder / "dataset.json").exists()
    copy = shutil.copytree(folder, tmp_path / "copy")
    clean(copy, CATEGORIES)
    assert len(list((copy / "shards").iterdir())) == 2, "the unfinished build needs it"
    for each in (folder, copy):
        with CacheWriter(each) as writer:
            assert writer.recovered_entries
            for number in range(5):
                put_sample(writer, number)
        assert len(content(each)) == 5
