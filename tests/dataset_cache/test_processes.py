"""Processes: a reader of this host is seen while it runs, whatever the clock says; readers elsewhere by the clock."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheBusy, clean, open_cache, preview_clean, processes, read_manifest
from streamcache.dataset_cache.processes import start_of, this_host
from streamcache.dataset_cache.read.leases import LEASES, STALE_SECONDS, holders, were_possible

from ..support.datasets import write_set
from ..support.package import run_python


def lease_name(path: Path, host: str, pid: int | str, number: str = "00000000") -> Path:
    (path / LEASES).mkdir(exist_ok=True)
    file = path / LEASES / f"{read_manifest(path).generation}.{host}.{pid}.{number}"
    file.touch()
    return file


def set_age(file: Path, seconds: float) -> None:
    os.utime(file, (time.time() - seconds,) * 2)


READER = """
from streamcache.dataset_cache import open_cache
cache = open_cache(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def reader(path: Path) -> Iterator[subprocess.Popen[str]]:
    command = run_python(READER, str(path))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "open\n"
        yield child
        child.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", range(4))


@pytest.mark.skipif(os.name == "nt", reason="on Windows open files cannot be removed, and the clock decides")
def test_a_living_reader_of_this_host_beats_the_clock(path: Path, reader: subprocess.Popen[str]):
    os.kill(reader.pid, signal.SIGSTOP)  # it cannot touch its lease
    (file,) = (path / LEASES).iterdir()
    set_age(file, 10 * STALE_SECONDS)
    old = read_manifest(path)
    assert [holder.pid for holder in holders(path)] == [reader.pid]
    write_set(path, [7])
    clean_all = preview_clean(path, ["superseded"])
    with pytest.raises(CacheBusy, match=f"process {reader.pid}"):
        clean(clean_all)
    assert (path / old.index_name).exists()
    os.kill(reader.pid, signal.SIGCONT)
    reader.kill()
    reader.wait()
    assert holders(path) == []
    clean(path, ["superseded"])
    assert not (path / old.index_name).exists()


@pytest.mark.skipif(os.name == "nt", reason="process numbers cannot be probed on Windows")
def test_a_killed_reader_that_its_parent_has_not_noticed_holds_nothing(path: Path, reader: subprocess.Popen[str]):
    reader.kill()
    os.waitid(os.P_PID, reader.pid, os.WEXITED | os.WNOWAIT)
    assert holders(path) == []


@pytest.mark.skipif(os.name == "nt", reason="process numbers cannot be probed on Windows")
def test_a_reused_process_number_holds_nothing(path: Path):
    file = lease_name(path, this_host(), os.getpid(), f"00000000-{start_of(os.getpid())}")
    assert len(holders(path)) == 1
    file.rename(file.with_name(file.name[:-1] + ("0" if file.name[-1] != "0" else "1")))
    assert holders(path) == [] and not any((path / LEASES).iterdir())


def test_a_lease_of_an_older_version_ends_by_the_clock(path: Path):
    file = lease_name(path, this_host(), os.getpid())
    assert len(holders(path)) == 1
    set_age(file, STALE_SECONDS + 5)
    assert holders(path) == []


def test_a_lease_dated_in_the_future_counts_as_touched_now(path: Path):
    file = lease_name(path, "elsewhere", 1)
    set_age(file, -70 * 365 * 24 * 3600)
    assert len(holders(path)) == 1
    assert abs(file.stat().st_mtime - time.time()) < 60
    set_age(file, STALE_SECONDS + 5)
    assert holders(path) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_has_its_own_start():
    assert processes.own_start() == start_of(os.getpid())
    child = os.fork()
    if not child:
        os._exit(0 if processes.own_start() == start_of(os.getpid()) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(os.name == "nt", reason="ps is a command of Unix")
def test_without_proc_the_start_of_a_process_comes_from_ps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "_PROC", tmp_path / "no proc")
    script = tmp_path / "ps"
    script.write_text(f"#!/bin/sh\n[ $4 = {os.getpid()} ] && cat {tmp_path}/start || exit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "start").write_text("Mon Nov 16 10:00:00 2026\n")
    start = start_of(os.getpid())
    assert start and processes.is_running(os.getpid(), start)
    (tmp_path / "start").write_text("Mon Nov 16 10:00:01 2026\n")
    assert processes.is_running(os.getpid(), start) is False
    script.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert start_of(os.getpid()) == "" and processes.is_running(os.getpid(), start) is None


@pytest.mark.parametrize("pid", ["²", "99999999999999999999", "4294967295", "-1", "", "0x5"])
def test_odd_names_in_the_folder_of_leases_are_ignored(path: Path, pid: str):
    for host in (this_host(), "a"):
        lease_name(path, host, pid, "c")
    (path / LEASES / "a.b.².c").touch()
    (path / LEASES / f"{'0' * 32}.elsewhere.5.folder").mkdir()
    holders(path)
    write_set(path, range(2))
    assert len(open_cache(path)) == 2
    assert (path / LEASES / f"{'0' * 32}.elsewhere.5.folder").exists()


# Readers that cannot leave leases


def test_publishing_keeps_recent_generations_if_readers_cannot_leave_leases(path: Path):
    assert not were_possible(path)
    old = read_manifest(path)
    set_age(path / old.index_name, 100 * 3600)  # it is old, but was current until now
    write_set(path, [7])
    assert (path / old.index_name).exists()
    assert all((path / "shards" / shard.file).exists() for shard in old.shards)
    between = read_manifest(path)
    set_age(path / between.index_name, 25 * 3600)
    write_set(path, [8])
    assert not (path / old.index_name).exists() and (path / between.index_name).exists()


def test_a_writer_alone_leaves_only_the_last_superseded_index(path: Path):
    for number in range(5):
        last = read_manifest(path)
        write_set(path, [number])
    assert not were_possible(path)
    assert {index.name for index in path.glob("index-*")} == {last.index_name, read_manifest(path).index_name}


def test_publishing_removes_superseded_files_at_once_if_readers_can_leave_leases(path: Path):
    old = read_manifest(path)
    open_cache(path)
    write_set(path, [7])
    assert were_possible(path) and not (path / old.index_name).exists()
