"""Checking whether a lock is held creates and changes nothing."""

from pathlib import Path

import pytest
from filelock import FileLock

from streamcache.dataset_cache.format import files
from streamcache.dataset_cache.format.files import is_locked


def test_a_held_lock_is_distinguished_from_a_free_one(tmp_path: Path):
    lock = FileLock(str(tmp_path / "lock"), thread_local=False)
    with lock:
        assert is_locked(tmp_path / "lock")
    (tmp_path / "lock").touch()
    before = (tmp_path / "lock").stat().st_mtime_ns
    assert not is_locked(tmp_path / "lock")
    assert (tmp_path / "lock").stat().st_mtime_ns == before or files.fcntl is None


def test_locks_are_checked_without_the_calls_of_unix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "fcntl", None)
    with FileLock(str(tmp_path / "lock"), thread_local=False):
        assert is_locked(tmp_path / "lock")
    assert not is_locked(tmp_path / "lock")


@pytest.mark.parametrize("calls", [files.fcntl, None])
def test_checking_a_lock_creates_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: object):
    """A folder that was just moved must not be created again."""
    monkeypatch.setattr(files, "fcntl", calls)
    with pytest.raises(FileNotFoundError):
        is_locked(tmp_path / "gone" / "lock")
    assert not (tmp_path / "gone").exists()
