"""Single files: only regular ones are opened, nothing blocks, and errors say whether the content is known."""

import errno
import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from streamcache.dataset_cache import CacheError, CacheUnreadable
from streamcache.dataset_cache.format import files
from streamcache.dataset_cache.format.files import OpenFile, WritableFile, link_or_copy


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("flags", ["all", "without O_NONBLOCK and O_NOFOLLOW"])
def test_pipes_and_folders_are_neither_read_nor_written(tmp_path: Path, flags: str, monkeypatch: pytest.MonkeyPatch):
    if flags != "all":
        monkeypatch.setattr(files, "OWN_FILE", 0)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(CacheError, match="is not a file"):
            OpenFile(tmp_path / name)
    with pytest.raises(CacheError, match="is not a file"):
        WritableFile(tmp_path / "pipe")
    monkeypatch.setattr(files, "HAS_LINKS", False)
    with pytest.raises(CacheError, match="is not a file"):
        link_or_copy(tmp_path / "pipe", tmp_path / "copy")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_file_that_becomes_a_pipe_while_it_is_opened_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    real = os.lstat

    def swap(path: Any, **options: Any) -> os.stat_result:
        found = real(path, **options)
        os.unlink(path)
        os.mkfifo(path)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", swap)
        with pytest.raises(CacheError, match="is not a file"):
            OpenFile(tmp_path / "file")


def test_an_empty_file_cannot_be_mapped(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match="file: cannot be mapped"):
        OpenFile(tmp_path / "file").map()


def test_a_file_that_the_system_does_not_map_now_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_bytes(b"abc")

    def refuse(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(CacheUnreadable, match="file: cannot be mapped"):
        OpenFile(tmp_path / "file").map()


def test_a_missing_file_and_a_file_in_place_of_a_folder_are_not_unreadable(tmp_path: Path):
    (tmp_path / "file").touch()
    for name in ("missing", "file/inside"):
        with pytest.raises(CacheError) as error:
            OpenFile(tmp_path / name)
        assert not isinstance(error.value, CacheUnreadable)


@pytest.mark.parametrize("name", ["a" * 255, "画" * 85, "é" * 127])
def test_a_file_with_the_longest_name_is_replaced(tmp_path, name: str):
    for content in (b"first", b"second"):
        files.replace_file(tmp_path / name, content)
        assert (tmp_path / name).read_bytes() == content
    assert len(list(tmp_path.iterdir())) == 1


def test_a_long_name_is_counted_in_bytes():
    assert not files.is_long_name("a" * 230) and not files.is_long_name("画" * 76)
    assert files.is_long_name("a" * 231) and files.is_long_name("画" * 77)
