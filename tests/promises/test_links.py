"""Links in an untrusted cache folder: their targets are neither written to nor removed."""

import io
import os
import shutil
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheBusy, CacheError, CacheWriter, open_cache
from streamcache.dataset_cache.format import LocalStorage, journal, segment
from streamcache.dataset_cache.format.journal import Journal
from streamcache.dataset_cache.upkeep import clean, usage

from ..dataset_cache.format.test_manifest import make_link
from ..support.samples import assert_holds, latent, write_cache

COUNT = 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_cache(tmp_path / "set", COUNT)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the user with something in it that every kind of removal could take for its own."""
    folder = tmp_path / "outside"
    for name in ("letters/one.txt", "app.log.1.gz", f"s-00000-{'0' * 32}.safetensors"):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("precious")
        os.utime(file, (1, 1))  # so old that it counts as stale
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("name", [".build", ".leases", "shards"])
def test_a_writer_refuses_a_linked_folder_and_leaves_its_target_alone(name: str, path: Path, outside: Path):
    before = contents(outside)
    if (path / name).exists():
        shutil.move(path / name, path.parent / "moved")
    make_link(path / name, outside)
    with pytest.raises(CacheError, match="symbolic link"):
        write_cache(path, COUNT + 1)
    assert contents(outside) == before


@pytest.mark.parametrize("name", [".lock", ".lock.holder"])
def test_a_writer_refuses_a_linked_lock(name: str, tmp_path: Path):
    target = tmp_path / "notes.txt"
    target.write_text("precious")
    (tmp_path / "set").mkdir()
    make_link(tmp_path / "set" / name, target)
    with pytest.raises(CacheError, match="symbolic link"):
        write_cache(tmp_path / "set", 1)
    assert target.read_text() == "precious"


def test_links_at_temporary_names_are_replaced_not_written_through(path: Path, tmp_path: Path):
    target = tmp_path / "notes.txt"
    target.write_text("precious")
    for name in (f".index.{os.getpid()}.tmp", f".dataset.json.{os.getpid()}.tmp"):
        make_link(path / name, target)
    write_cache(path, COUNT + 1)
    assert target.read_text() == "precious"
    assert_holds(open_cache(path), range(COUNT + 1))


def test_readers_neither_leave_nor_remove_leases_behind_a_link(path: Path, outside: Path):
    before = contents(outside)
    shutil.rmtree(path / ".leases", ignore_errors=True)
    make_link(path / ".leases", outside)
    cache = open_cache(path)
    assert usage(path).readers == ()
    assert_holds(cache, range(COUNT))
    assert contents(outside) == before


def test_cleaning_removes_a_linked_segment_itself_only(path: Path, outside: Path):
    before = contents(outside)
    (path / ".build").mkdir()
    make_link(path / ".build" / "segment", outside)
    clean(path, ["debris"])
    assert not os.path.lexists(path / ".build" / "segment")
    assert contents(outside) == before


def test_a_linked_shard_of_an_unfinished_build_is_not_sealed(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt), CacheWriter(tmp_path / "set") as writer:
        writer.put("one", latent(0), "latent")
        raise KeyboardInterrupt
    (shard,) = (tmp_path / "set" / segment.BUILD).glob("*/0")
    shutil.move(shard, tmp_path / "notes")
    before = (tmp_path / "notes").read_bytes()
    make_link(shard, tmp_path / "notes")
    with CacheWriter(tmp_path / "set") as writer:
        assert not writer.has("one")
    assert (tmp_path / "notes").read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_in_place_of_a_journal_does_not_block(tmp_path: Path):
    folder = tmp_path / "set" / segment.BUILD / "segment"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "journal")
    with pytest.raises(CacheError, match="never published"):
        open_cache(tmp_path / "set")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_in_place_of_the_lock_holders_name_does_not_block(path: Path):
    os.mkfifo(path / ".lock.holder")
    with CacheWriter(path, append=True):
        (path / ".lock.holder").unlink()
        os.mkfifo(path / ".lock.holder")
        with pytest.raises(CacheBusy, match="another process is writing"):
            CacheWriter(path)
    assert_holds(open_cache(path), range(COUNT))


def test_a_journal_without_an_end_of_line_is_not_taken_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(journal, "MAX_LINE", 1 << 10)
    endless = io.BytesIO(bytes(1 << 20))
    assert list(journal._read_lines(endless)) == [] and endless.tell() <= 1 << 10


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="links are only seen before a file is opened here")
def test_a_journal_is_not_written_through_a_link(tmp_path: Path):
    target = tmp_path / "notes.txt"
    target.write_text("precious")
    make_link(tmp_path / "journal", target)
    written = Journal(LocalStorage(tmp_path), "journal")
    written.append(kind="layout")
    with pytest.raises(OSError):
        written.flush()
    assert target.read_text() == "precious"
