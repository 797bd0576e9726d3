"""A file that cannot be read now is not damaged: repair, clean and writers refuse, and change nothing."""

import errno
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamcache.cli.main import main
from streamcache.dataset_cache import CacheError, CacheUnreadable, CacheWriter, LossRefused, clean, open_cache
from streamcache.dataset_cache.format import read_manifest
from streamcache.dataset_cache.read import holders
from streamcache.dataset_cache.upkeep import info, merge, repair, verify

from ...support.datasets import blob_place, content, flip, listing, put_sample, shard_files, write_set
from ...support.package import run_python

Fault = Callable[[str], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = write_set(tmp_path / "set", range(20))
    for first in (20, 40):
        write_set(folder, range(first, first + 20), append=True)
    return folder


def failing(monkeypatch: pytest.MonkeyPatch, part: str, number: int, times: int = 1 << 30, after: int = 0) -> list[str]:
    """Calls that open a file whose name contains `part` fail: `times` of them, `after` others. Returns their names."""
    real, failed, opened = os.open, [], itertools.count()

    def opening(name: Any, *args: Any, **options: Any) -> int:
        if part in str(name) and next(opened) >= after and len(failed) < times:
            failed.append(str(name))
            raise OSError(number, os.strerror(number), str(name))
        return real(name, *args, **options)

    monkeypatch.setattr(os, "open", opening)
    return failed


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE, errno.ETIMEDOUT])
def test_repair_refuses_a_shard_that_cannot_be_opened_and_changes_nothing(
    path: Path, number: int, monkeypatch: pytest.MonkeyPatch
):
    before = listing(path)
    name = shard_files(path)[1].name
    with monkeypatch.context() as patch:
        failed = failing(patch, name, number)
        with pytest.raises(CacheUnreadable, match=name):
            repair(path, accept_loss=True)
    assert len(failed) > 1, "it was not tried again"
    assert listing(path) == before and len(content(path)) == 60


@pytest.mark.parametrize("calls", [os.preadv, None] if hasattr(os, "preadv") else [None])
def test_repair_refuses_a_shard_that_cannot_be_read_to_its_end(path: Path, calls: Any, monkeypatch: pytest.MonkeyPatch):
    from streamcache.dataset_cache.format import files

    before, victim, real = listing(path), shard_files(path)[1], files._readinto

    def fail(fd: int, buffers: Any, offset: int) -> int:
        if os.path.samestat(os.fstat(fd), victim.stat()) and offset > 4000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return calls(fd, buffers, offset)

    def fail_at_once(fd: int, buffer: memoryview) -> int:
        if os.path.samestat(os.fstat(fd), victim.stat()):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, buffer)

    with monkeypatch.context() as patch:
        if calls is not None:
            patch.setattr(os, "preadv", fail)
        else:
            patch.setattr(files, "HAS_PREADV", False)
            patch.setattr(files, "_readinto", fail_at_once)
        with pytest.raises(CacheUnreadable):
            repair(path, accept_loss=True)
    assert listing(path) == before


def test_a_disk_error_that_goes_away_drops_nothing(path: Path, monkeypatch: pytest.MonkeyPatch):
    before = listing(path)
    with monkeypatch.context() as patch:
        failed = failing(patch, shard_files(path)[0].name, errno.EIO, times=1)
        assert not repair(path, accept_loss=True).samples
        assert list(verify(path)) == []
    assert len(failed) == 1 and listing(path) == before


def test_verify_distinguishes_unreadable_from_damaged(path: Path, monkeypatch: pytest.MonkeyPatch):
    first, second = shard_files(path)[:2]
    flip(*blob_place(path, "latent 3"))
    failing(monkeypatch, second.name, errno.EACCES)
    problems = list(verify(path))
    assert [(p.kind, p.place) for p in problems if p.sample is None] == [("unreadable", f"shards/{second.name}")]
    assert [(p.kind, p.sample) for p in problems if p.sample is not None] == [("damaged", 3)]
    assert first.name in problems[0].place


@pytest.mark.parametrize("part", ["dataset.json", "index-"])
def test_an_unreadable_manifest_or_index_is_not_called_damaged(path: Path, part: str, monkeypatch: pytest.MonkeyPatch):
    failing(monkeypatch, part, errno.EIO)
    (problem,) = verify(path)
    assert problem.kind == "unreadable" and "remove the cache" not in problem.what
    with pytest.raises(CacheUnreadable):
        repair(path, accept_loss=True)


@pytest.mark.parametrize("what", [verify, info.usage, lambda path: merge([path], path.parent / "merged")])
def test_one_failure_of_any_read_of_the_manifest_is_overcome(path: Path, what: Any, monkeypatch: pytest.MonkeyPatch):
    for after in range(100):
        with monkeypatch.context() as patch:
            failed = failing(patch, str(path / "dataset.json"), errno.EIO, times=1, after=after)
            found = what(path)
            assert what is not verify or list(found) == []
        shutil.rmtree(path.parent / "merged", ignore_errors=True)
        if not failed:  # there is no further read
            break
    assert after > 1


def run_limited(script: str, path: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = run_python(f"from pathlib import Path\npath = Path(sys.argv[1])\n{script}", str(path))
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


PRELUDE = """
import os, resource
from streamcache.dataset_cache import repair, CacheError
from streamcache.dataset_cache.upkeep import verify
"""


@pytest.mark.skipif(os.name == "nt", reason="resource limits are POSIX")
def test_without_file_handles_repair_drops_no_sample(path: Path):
    before = listing(path)
    script = """
taken = []
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
for spare in range(8):
    taken = taken + [os.open(os.devnull, os.O_RDONLY)]
while True:
    try:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        break
done = 0
for spare in range(12):
    try:
        report = repair(path, accept_loss=True)
        done += 1
        assert not report.samples, report
    except (CacheError, OSError) as error:
        print(type(error).__name__)
    os.close(taken.pop())
assert done, "never enough handles"
"""
    result = run_limited(PRELUDE + script, path)
    assert result.returncode == 0, result.stderr
    assert "CacheUnreadable" in result.stdout  # at least once only the shards lacked a handle
    assert listing(path) == before


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter. Not below pytest's own: each pytest that starts closes that one to others."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.mark.skipif(not hasattr(os, "setuid") or os.getuid() != 0, reason="another user can only be played by root")
def test_a_shard_without_read_permission_is_not_dropped(path: Path, open_folder: Path):
    path = Path(shutil.copytree(path, open_folder / "set"))
    for folder in (path, *path.rglob("*")):
        if folder.is_dir():
            folder.chmod(0o777)
    (path / ".lock").chmod(0o666)
    victim = shard_files(path)[1]
    victim.chmod(0)
    before = listing(path)
    script = """
os.setgid(65534); os.setuid(65534)
print([(p.kind, p.place) for p in verify(path)])
try:
    print(repair(path, accept_loss=True))
except CacheError as error:
    print(type(error).__name__, error)
"""
    result = run_limited(PRELUDE + script, path)
    assert f"[('unreadable', 'shards/{victim.name}')]" in result.stdout, result.stderr
    assert "CacheUnreadable" in result.stdout and "Permission denied" in result.stdout
    assert listing(path) == before


# Consent


def test_a_repair_that_drops_many_samples_is_refused_and_names_them(path: Path):
    shard_files(path)[1].unlink()
    before = listing(path)
    with pytest.raises(LossRefused, match=r"24 of 60 samples: 20\.png, 21\.png.* and 14 more") as refused:
        repair(path)
    # Four of the others share a caption with one of them by its content.
    assert {number for number, _ in refused.value.samples} > set(range(20, 40))
    assert listing(path) == before
    assert len(repair(path, accept_loss=True).samples) == 24


def test_a_small_loss_needs_no_consent(path: Path):
    flip(*blob_place(path, "latent 3"))
    assert repair(path).samples == ((3, "3.png"),)


def test_the_command_needs_yes_to_drop_many_samples(path: Path, capsys: pytest.CaptureFixture[str]):
    shard_files(path)[1].unlink()
    before = listing(path)
    assert main(["verify", str(path), "--repair", "--all"]) == 1
    out, err = capsys.readouterr()
    assert "--yes" in err and all(f"({i}.png)" in out for i in range(20, 40))
    assert listing(path) == before
    assert main(["verify", str(path), "--repair", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["repaired"] is None and "--yes" in facts["error"] and facts["problems"]
    assert main(["verify", str(path), "--repair", "--yes"]) == 0
    assert len(open_cache(path)) == 36


# The same mistake elsewhere


def test_an_unfinished_build_whose_journal_cannot_be_read_is_neither_debris_nor_dropped(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    writer = CacheWriter(path, append=True)
    put_sample(writer, 99)
    writer.close()
    assert len(list(path.glob(".build/*/journal"))) == 1
    before = listing(path)
    with monkeypatch.context() as patch:
        failing(patch, "journal", errno.EIO)
        with pytest.raises(CacheUnreadable):
            clean(path, ["debris"])
        with pytest.raises(CacheUnreadable):
            CacheWriter(path, append=True)
        assert [p.kind for p in verify(path)] == ["unreadable"]
    assert listing(path) == before
    with CacheWriter(path, append=True) as again:
        assert again.recovered_entries == 3


def test_a_lease_that_cannot_be_examined_counts_as_held(path: Path, monkeypatch: pytest.MonkeyPatch):
    reader, real = open_cache(path), os.lstat

    def fail(name: Any, *args: Any, **options: Any) -> os.stat_result:
        if f"{os.sep}.leases{os.sep}" in str(name):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(name))
        return real(name, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", fail)
        assert [holder.pid for holder in holders(path)] == [os.getpid()]
    assert list((path / ".leases").iterdir()) and len(reader) == 60


def test_encoding_with_check_refuses_an_unreadable_shard(path: Path, monkeypatch: pytest.MonkeyPatch):
    generation = read_manifest(path).generation
    failing(monkeypatch, shard_files(path)[0].name, errno.EIO)
    with pytest.raises(CacheError):
        repair(path, accept_loss=True)
    assert read_manifest(path).generation == generation
