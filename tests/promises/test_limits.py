"""The writer at the limits of the system: memory, full disks, folders without permission, another process."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheBusy, CacheError, CacheWriter, open_cache

from ..support.processes import fill_small_files, hold, needs_fork, read_and_write, write_large
from ..support.samples import assert_holds, put_sample, write_cache

needs_proc = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")


@needs_fork
@needs_proc
def test_c8_writing_ten_times_as_much_takes_no_more_memory(tmp_path, nursery):
    megabyte = 1 << 18  # floats
    peaks = [nursery.start(write_large, tmp_path / f"{n}", n, megabyte).wait()[-1][1] for n in (10, 100)]
    assert peaks[0] < 16 << 20 and peaks[1] < 16 << 20, f"peaks of {peaks} for 10 and for 100 samples of 1 MB"


@needs_fork
def test_a_second_writer_in_another_process_is_refused_until_the_first_is_gone(tmp_path, nursery):
    path = write_cache(tmp_path / "my set", 2)
    child = nursery.start(hold, path)
    child.wait_for("open")
    with pytest.raises(CacheBusy, match=rf"my set: processes.py \(process {child.pid} on .*since.*wait"):
        CacheWriter(path)
    assert_holds(open_cache(path), range(2))
    child.kill()
    write_cache(path, 1, first=2, append=True)
    assert_holds(open_cache(path), range(3))


class Disk:
    """Lets `left` more bytes be written, then is full; a write that crosses the edge is cut short, as a real one is."""

    def __init__(self) -> None:
        self.left = 1 << 60
        self._write = os.write

    def write(self, fd: int, data: memoryview) -> int:
        size = min(self.left, len(data))
        if not size and len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        self.left -= size
        return self._write(fd, data[:size])


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(os, "write", disk.write)
    return disk


@pytest.mark.parametrize("left", [0, 1, 63, 64, 200, 700, 1500, 2500, 4000])
def test_a_full_disk_is_an_error_and_loses_no_flushed_entry(tmp_path, disk, left):
    path = write_cache(tmp_path / "set", 2)
    durable = []
    disk.left = left
    with pytest.raises(CacheError, match="No space left on device.*(is|are) safe"), CacheWriter(path) as w:
        for i in range(10, 40):
            put_sample(w, i)
            w.flush()
            durable.append(i)
    disk.left = 1 << 60
    assert_holds(open_cache(path, check=True), range(2))
    with CacheWriter(path) as w:
        assert all(w.has(f"latent {i}") and w.has(f"text {i}") for i in durable)
        for i in range(10, 40):
            put_sample(w, i)
    assert_holds(open_cache(path, check=True), range(10, 40))


def test_a_writer_continues_once_there_is_room_again(tmp_path, disk):
    with CacheWriter(tmp_path / "set") as w:
        done, refused, i = 0, 0, 0
        while done < 30:
            disk.left = 1 << 60 if refused > 15 else 100 + 130 * refused
            try:
                if i == done:
                    put_sample(w, i)
                    i += 1
                w.flush()
                done = i
            except CacheError:
                refused += 1
        disk.left = 1 << 60
    assert refused > 5
    assert_holds(open_cache(tmp_path / "set", check=True), range(30))


@needs_fork
@pytest.mark.parametrize("largest", [5_000, 264_000, 266_000])
def test_a_file_size_limit_is_an_error_and_loses_no_flushed_entry(tmp_path, nursery, largest):
    """A limit of the system itself: the journal, the shard or the index does not fit."""
    notes = nursery.start(fill_small_files, tmp_path / "set", largest, 60).wait()
    assert notes[-1][0] == "CacheError" and "too large" in notes[-1][1]
    durable = [i for what, i in notes[:-1]]
    with CacheWriter(tmp_path / "set") as w:
        assert all(w.has(f"latent {i}") for i in durable)
        for i in range(60):
            put_sample(w, i)
    assert_holds(open_cache(tmp_path / "set", check=True), range(60))


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that other users can get into, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="streamcache-test-"))
    folder.chmod(0o755)
    yield folder
    for file in [folder, *folder.rglob("*")]:
        file.chmod(0o755)
    shutil.rmtree(folder)


@contextmanager
def rights(folder: Path, folders: int, files: int) -> Iterator[None]:
    places = [folder, *folder.rglob("*")]
    before = [place.stat().st_mode for place in places]
    for place in reversed(places):
        place.chmod(folders if place.is_dir() else files)
    yield
    for place, mode in zip(places, before):
        place.chmod(mode)


@needs_fork
def test_a_read_only_folder_can_be_read_and_is_not_written_to(shared_folder, nursery):
    path = write_cache(shared_folder / "set", 3)
    with rights(path, 0o555, 0o444):
        before = sorted(path.rglob("*"))
        notes = nursery.start(read_and_write, path).wait()
        assert sorted(path.rglob("*")) == before
    assert notes[0] == ["read", "done", ""]
    assert notes[1][:2] == ["write", "CacheError"] and "cannot be written to" in notes[1][2]


@needs_fork
@pytest.mark.parametrize(
    "folders, files", [(0o000, 0o000), (0o755, 0o000), (0o711, 0o600)], ids=["folder", "files", "owner's"]
)
def test_a_folder_without_permission_raises_a_cache_error(shared_folder, nursery, folders, files):
    path = write_cache(shared_folder / "set", 3)
    with rights(path, folders, files):
        notes = nursery.start(read_and_write, path).wait()
    for what, kind, message in notes:
        assert kind in ("CacheError", "CacheUnreadable") and "ermission denied" in message, f"{what}: {kind} {message}"
    assert len(notes) == 2
    assert_holds(open_cache(path), range(3))
