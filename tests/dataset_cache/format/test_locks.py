"""Locks: checking one changes nothing; drives without file locks get markers that do not outlive their process."""

import errno
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from streamcache.dataset_cache import CacheBusy, CacheError, CacheWriter, current_publisher, open_cache
from streamcache.dataset_cache.format import LocalStorage, locks
from streamcache.dataset_cache.format.locks import is_locked, take_lock
from streamcache.dataset_cache.format.segment import Segment
from streamcache.dataset_cache.processes import start_of, this_host
from streamcache.dataset_cache.upkeep import clean, verify

from ...support.datasets import put_sample, write_set


def test_a_held_lock_is_distinguished_from_a_free_one(tmp_path: Path):
    lock = FileLock(str(tmp_path / "lock"), thread_local=False)
    with lock:
        assert is_locked(tmp_path / "lock")
    (tmp_path / "lock").touch()
    before = (tmp_path / "lock").stat().st_mtime_ns
    assert not is_locked(tmp_path / "lock")
    assert (tmp_path / "lock").stat().st_mtime_ns == before or locks.fcntl is None


def test_locks_of_older_versions_exclude_ours_and_the_reverse(tmp_path: Path):
    with FileLock(str(tmp_path / "lock"), thread_local=False), pytest.raises(TimeoutError):
        take_lock(tmp_path / "lock")
    held = take_lock(tmp_path / "lock")
    with pytest.raises(TimeoutError):
        FileLock(str(tmp_path / "lock"), thread_local=False).acquire(timeout=0)
    held.release()
    FileLock(str(tmp_path / "lock"), thread_local=False).acquire(timeout=0)


def test_locks_work_without_the_calls_of_unix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(locks, "fcntl", None)
    held = take_lock(tmp_path / "lock")
    assert is_locked(tmp_path / "lock")
    held.release()
    assert not is_locked(tmp_path / "lock")


@pytest.mark.parametrize("calls", [locks.fcntl, None])
def test_checking_a_lock_creates_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: object):
    """A folder that was just moved must not be created again."""
    monkeypatch.setattr(locks, "fcntl", calls)
    with pytest.raises(FileNotFoundError):
        is_locked(tmp_path / "gone" / "lock")
    assert not (tmp_path / "gone").exists()


def test_a_segment_waits_for_a_process_that_only_looks_at_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real, looking = locks._try_lock, threading.Event()

    def looked_at(path: Path) -> Any:
        """Another process has the lock when the segment asks for it first, and lets go soon after."""
        if not looking.is_set():
            looking.set()
            fd = os.open(path, os.O_RDONLY | os.O_CREAT)
            locks.fcntl.flock(fd, locks.fcntl.LOCK_SH)
            threading.Timer(0.1, os.close, [fd]).start()
        return real(path)

    monkeypatch.setattr(locks, "_try_lock", looked_at)
    (tmp_path / "set").mkdir()
    Segment(LocalStorage(tmp_path / "set")).remove()
    assert looking.is_set()


# Drives without file locks


@pytest.fixture(params=["ENOSYS", "EOPNOTSUPP", "ENOLCK", "EINVAL"])
def no_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    number = getattr(errno, request.param)

    def flock(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(locks.fcntl, "flock", flock)


@pytest.mark.usefixtures("no_locks")
def test_without_file_locks_one_writer_excludes_another(tmp_path: Path):
    path = write_set(tmp_path / "set", range(3))
    writer = CacheWriter(path)
    assert current_publisher(path)
    with pytest.raises(CacheBusy, match=r"process \d+ on .*remove .*\.lock\.held"):
        CacheWriter(path)
    put_sample(writer, 7)
    assert list(verify(path)) == []
    writer.close()
    assert current_publisher(path) is None
    with CacheWriter(path, append=True) as writer:
        assert writer.recovered_entries == 3
    assert len(open_cache(path)) == 3


@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize("left", ["", "4194304 other words", "not a record", "dead"])
def test_without_file_locks_what_an_earlier_run_left_blocks_no_writer(tmp_path: Path, left: str):
    path = write_set(tmp_path / "set", range(3))
    (path / ".lock").touch()
    if left == "dead":
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        left = f"{this_host()} {ended.pid} {start_of(os.getpid())}"
    marker = path / ".lock.held"
    marker.write_text(left)
    os.utime(marker, (time.time() - 100,) * 2)
    write_set(path, range(2))
    assert len(open_cache(path)) == 2 and not marker.exists()


@pytest.mark.usefixtures("no_locks")
def test_without_file_locks_a_marker_dated_ahead_counts_as_written_now(tmp_path: Path):
    path = write_set(tmp_path / "set", range(3))
    marker = path / ".lock.held"
    marker.write_text("")  # its process may be about to write its name
    os.utime(marker, (time.time() + 1e9,) * 2)
    with pytest.raises(CacheBusy):
        write_set(path, range(2))
    assert abs(marker.stat().st_mtime - time.time()) < 3600
    os.utime(marker, (time.time() - 100,) * 2)
    write_set(path, range(2))
    assert len(open_cache(path)) == 2


@pytest.mark.usefixtures("no_locks")
def test_without_file_locks_a_reused_process_number_holds_nothing(tmp_path: Path):
    path = write_set(tmp_path / "set", range(3))
    (path / ".lock.held").write_text(f"{this_host()} {os.getpid()} 00000000ffff")
    write_set(path, range(2))
    assert len(open_cache(path)) == 2


@pytest.mark.usefixtures("no_locks")
def test_without_file_locks_a_marker_of_another_host_is_named(tmp_path: Path):
    path = write_set(tmp_path / "set", range(3))
    (path / ".lock.held").write_text("elsewhere-1 5 00ff")
    with pytest.raises(CacheBusy, match=r"\.lock\.held"):
        CacheWriter(path)


@pytest.mark.usefixtures("no_locks")
def test_without_file_locks_a_writer_that_was_dropped_holds_nothing(tmp_path: Path):
    writer = CacheWriter(tmp_path / "set")
    put_sample(writer, 1)
    del writer
    gc.collect()
    assert len(open_cache(write_set(tmp_path / "set", range(2)))) == 2


@pytest.mark.usefixtures("no_locks")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_without_file_locks_a_forked_child_keeps_the_lock_of_its_parent(tmp_path: Path):
    held = take_lock(tmp_path / "lock")
    child = os.fork()
    if not child:
        held.__del__()
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(TimeoutError):
        take_lock(tmp_path / "lock")
    held.release()


@pytest.mark.usefixtures("no_locks")
def test_without_file_locks_a_marker_that_cannot_be_written_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    opened: list[int] = []

    def full(fd: int, data: bytes) -> int:
        opened.append(fd)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            take_lock(tmp_path / "lock")
    for fd in opened:
        with pytest.raises(OSError):
            os.fstat(fd)
    assert opened and not is_locked(tmp_path / "lock")
    take_lock(tmp_path / "lock").release()


# Folders from elsewhere


def put_pipe(path: Path) -> None:
    os.mkfifo(path)


def put_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("put", [put_pipe, put_folder])
@pytest.mark.parametrize("calls", [locks.fcntl, None])
def test_a_pipe_in_place_of_the_publish_lock_is_refused(
    tmp_path: Path, put: Callable[[Path], None], calls: object, monkeypatch: pytest.MonkeyPatch
):
    path = write_set(tmp_path / "set", range(3))
    (path / ".lock").unlink()
    put(path / ".lock")
    monkeypatch.setattr(locks, "fcntl", calls)
    assert current_publisher(path) is None
    assert list(verify(path)) == []
    for write in (lambda: CacheWriter(path), lambda: clean(path, ["debris"])):
        with pytest.raises(CacheError, match=r"\.lock: is not a file"):
            write()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("calls", [locks.fcntl, None])
def test_a_pipe_in_place_of_a_segments_lock_does_not_block(
    tmp_path: Path, calls: object, monkeypatch: pytest.MonkeyPatch
):
    path = write_set(tmp_path / "set", range(3))
    (path / ".build" / "x").mkdir(parents=True)
    os.mkfifo(path / ".build" / "x" / "lock")
    monkeypatch.setattr(locks, "fcntl", calls)
    assert [problem.kind for problem in verify(path)] == ["debris"]
    write_set(path, range(2))
    clean(path, ["debris"])
    assert not (path / ".build").exists() and len(open_cache(path)) == 2
