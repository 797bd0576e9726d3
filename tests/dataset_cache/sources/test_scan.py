"""Scanning source folders and noticing changes."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from streamcache.dataset_cache.sources import scan
from streamcache.dataset_cache.sources.memory import SourceMemory
from streamcache.dataset_cache.sources.scan import Counts, FolderWatch, Inventory, take_inventory, walk_folder
from streamcache.errors import CacheError

from ...support.fixtures import settle, touch


def listed(root, **options) -> dict[str, list[str]]:
    listings, _ = walk_folder(str(root), True, **options)
    return {os.path.relpath(listing.directory, root): sorted(listing.names) for listing in listings}


def inventory(root, memory: SourceMemory, counts: Counts | None = None, **options) -> Inventory:
    listings, _ = walk_folder(str(root), True, trust=options.get("trust", False))
    return take_inventory(listings, memory, counts or Counts(), **{"hash_new": True, **options})


def test_folders_are_sorted_and_list_only_relevant_files(tree):
    (tree / "notes.pdf").write_text("x")
    (tree / ".hidden.png").write_text("x")
    (tree / ".git").mkdir()
    (tree / ".git" / "x.png").write_text("x")
    found = listed(tree)
    assert list(found) == [".", "a", "b"]
    assert found["b"] == ["1.png", "1.txt", "2.png", "2.txt"] and found["."] == ["0.png", "0.txt"]


def test_a_walk_can_skip_folders_and_subfolders(tree):
    assert [listing.directory for listing in walk_folder(str(tree), False)[0]] == [str(tree)]
    assert list(listed(tree, skip=[str(tree / "a")])) == [".", "b"]


def test_a9_an_unrelated_file_changes_no_digest_and_an_edit_changes_one(tree):
    before = {listing.directory: listing.digest for listing in walk_folder(str(tree), True)[0]}
    (tree / "a" / "thumbs.db").write_text("x")
    assert before == {listing.directory: listing.digest for listing in walk_folder(str(tree), True)[0]}
    (tree / "b" / "1.txt").write_text("edited")
    after = {listing.directory: listing.digest for listing in walk_folder(str(tree), True)[0]}
    assert [path for path in before if before[path] != after[path]] == [str(tree / "b")]


def test_a9_one_scandir_per_folder_one_stat_per_file_nothing_opened(tree, monkeypatch):
    with SourceMemory(None) as memory:
        inventory(tree, memory)
        scans = []
        real = os.scandir
        monkeypatch.setattr(os, "scandir", lambda path: (scans.append(str(path)), real(path))[1])
        monkeypatch.setattr(scan, "read_facts", None)
        counts = Counts()
        inventory(tree, memory, counts)
    assert sorted(scans) == sorted({str(tree), str(tree / "a"), str(tree / "b")})
    assert (counts.listed, counts.opened, counts.hashed) == (8, 0, 0)


def test_a10_only_changed_candidates_are_opened_and_hashed(tree, picture):
    with SourceMemory(None) as memory:
        first = Counts()
        inventory(tree, memory, first)
        assert (first.opened, first.hashed) == (8, 8)
        touch(tree / "0.png")
        picture("set/b/1.png", size=(32, 16), seed=5)
        (tree / "a" / "9.txt").write_text("edited")
        settle()
        counts = Counts()
        found = inventory(tree, memory, counts)
        assert (counts.opened, counts.hashed) == (3, 3)
        assert found.folders[str(tree / "b")]["1.png"].width == 32
        assert found.folders[str(tree / "a")]["9.txt"].text == "edited"
        again = Counts()
        inventory(tree, memory, again)
        assert again.opened == 0


def test_a10_the_largest_candidates_come_first(tree, picture, monkeypatch):
    from streamcache.dataset_cache.sources import scan as module

    (tree / "big.txt").write_text("x" * 100_000)
    order = []
    real = module.read_facts
    monkeypatch.setattr(module, "read_facts", lambda path, whole: (order.append(path), real(path, whole))[1])
    with SourceMemory(None) as memory:
        inventory(tree, memory, threads=1)
    sizes = [os.path.getsize(path) for path in order]
    assert sizes == sorted(sizes, reverse=True) and order[0].endswith("big.txt")


def test_only_headers_of_new_files_are_read_if_they_are_decoded_anyway(tree):
    with SourceMemory(None) as memory:
        counts = Counts()
        found = inventory(tree, memory, counts, hash_new=False)
        assert counts.opened == 8 and counts.hashed == 4  # the captions
        facts = found.folders[str(tree)]["0.png"]
        assert facts.content == b"" and (facts.width, facts.height) == (16, 16)


def test_trust_neither_stats_nor_opens_known_files(tree, picture, monkeypatch):
    with SourceMemory(None) as memory:
        inventory(tree, memory)
        (tree / "0.txt").write_text("edited")
        picture("set/new.png", size=(8, 8))
        counts = Counts()
        found = inventory(tree, memory, counts, trust=True)
        assert found.folders[str(tree)]["0.txt"].text == "0.png"  # stale, as asked
        assert found.trusted == 8 and counts.opened == 1


def test_a_cache_inside_a_source_is_skipped(tree):
    (tree / "cache" / "shards").mkdir(parents=True)
    (tree / "cache" / "dataset.json").write_text("{}")
    (tree / "cache" / "sheet.png").write_text("x")
    assert list(listed(tree)) == [".", "a", "b"]


def test_a_missing_source_folder_is_refused(tmp_path):
    with pytest.raises(CacheError, match="the source folder is missing; mount it"):
        walk_folder(str(tmp_path / "gone"), True)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_symlink_loops_end_and_are_reported(tree):
    (tree / "a" / "loop").symlink_to(tree)
    (tree / "0_link").symlink_to(tree / "b")
    (tree / "self.png").symlink_to(tree / "self.png")
    (tree / "dangling.png").symlink_to(tree / "nowhere.png")
    listings, problems = walk_folder(str(tree), True)
    assert [os.path.relpath(listing.directory, tree) for listing in listings] == [".", "a", "b"]
    reasons = {os.path.relpath(problem.source, tree): problem.reason for problem in problems}
    assert set(reasons) == {"a/loop", "0_link"} and "already read" in reasons["a/loop"]
    with SourceMemory(None) as memory:
        found = take_inventory(listings, memory, Counts(), hash_new=True).folders[str(tree)]
    for name in ("self.png", "dangling.png"):
        assert found[name].unreadable and "cannot be read" in found[name].error


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_linked_folders_and_files_are_followed(tree, tmp_path, picture):
    outside = picture("outside/x.png")
    (tree / "linked").symlink_to(tmp_path / "outside")
    (tree / "y.png").symlink_to(outside)
    found = listed(tree)
    assert found["linked"] == ["x.png"] and "y.png" in found["."]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_are_not_unicode_are_reported_and_skipped(tree):
    with open(os.fsencode(tree) + b"/caf\xe9.png", "wb") as file:
        file.write(b"x")
    os.mkdir(os.fsencode(tree) + b"/caf\xe9")
    listings, problems = walk_folder(str(tree), True)
    assert len(listings) == 3 and len(listings[0].names) == 2
    assert [problem.reason for problem in problems] == [
        "its name is not valid Unicode; rename it",
        "the folder's name is not valid Unicode; rename it",
    ]


def test_files_that_vanish_while_scanning_are_skipped(tree, monkeypatch):
    listings, _ = walk_folder(str(tree), True)
    (tree / "0.png").unlink()
    with SourceMemory(None) as memory:
        found = take_inventory(listings, memory, Counts(), hash_new=True)
    assert "cannot be read" in found.folders[str(tree)]["0.png"].error
    assert found.folders[str(tree)]["0.txt"].text == "0.png"


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="this user may read everything")
def test_unreadable_files_and_folders_are_reported(tree):
    (tree / "0.png").chmod(0)
    (tree / "b").chmod(0)
    try:
        listings, problems = walk_folder(str(tree), True)
        with SourceMemory(None) as memory:
            found = take_inventory(listings, memory, Counts(), hash_new=True)
        assert "Permission denied" in found.folders[str(tree)]["0.png"].error
        assert "cannot be listed" in problems[0].reason
    finally:
        (tree / "b").chmod(0o755)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX")
def test_pipes_and_sockets_are_reported_without_waiting(tree):
    import socket

    os.mkfifo(tree / "pipe.png")
    with socket.socket(socket.AF_UNIX) as end:
        place = os.getcwd()
        os.chdir(tree)  # names of sockets are short
        try:
            end.bind("socket.png")
        finally:
            os.chdir(place)
        with SourceMemory(None) as memory:
            found = inventory(tree, memory).folders[str(tree)]
    for name in ("pipe.png", "socket.png"):
        assert found[name].error == "cannot be read: not a regular file" and not found[name].unreadable


def test_an_interrupt_between_reads_keeps_what_was_read(tree, monkeypatch):
    from streamcache.dataset_cache.sources import scan as module

    monkeypatch.setattr(module, "_COMMIT", 3)
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with SourceMemory(None) as memory:
        with pytest.raises(KeyboardInterrupt):
            inventory(tree, memory, check=check)
        counts = Counts()
        inventory(tree, memory, counts)
        assert counts.opened == 5


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="a million files are made in memory only")
def test_a_folder_with_a_million_entries_is_listed_in_little_memory():
    import resource
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for number in range(1_000_000):
            os.mknod(f"{folder}/{number}.dat")
        os.mknod(f"{folder}/a.png")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert listed(folder)["."] == ["a.png"]
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KB


@pytest.mark.parametrize("date", [1_000_000_000, 4_000_000_000])  # long ago, and far ahead: a clock was wrong
def test_a_folder_that_did_not_change_is_not_listed_again(tmp_path, monkeypatch, date):
    for name in ("a/one.pt", "a/deep/two.pt", "b/three.pt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    for folder in (tmp_path, *(p for p in tmp_path.rglob("*") if p.is_dir() and not p.is_symlink())):
        os.utime(folder, (date, date))  # so that its listing can be relied on
    listed: list[str] = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(str(path)) or real(path))
    watch = FolderWatch()
    first = watch.files([str(tmp_path)])
    assert len(first) == 3 and len(listed) == 4
    listed.clear()
    (tmp_path / "a" / "one.pt").write_bytes(b"longer")  # no folder changes
    second = watch.files([str(tmp_path)])
    assert not listed and second != first and second.keys() == first.keys()
    (tmp_path / "b" / "new.pt").write_bytes(b"x")
    assert len(watch.files([str(tmp_path)])) == 4 and listed == [str(tmp_path / "b")]
    listed.clear()
    (tmp_path / "b" / "newer.pt").write_bytes(b"x")  # the folder changed a moment ago: its time may not show it
    assert len(watch.files([str(tmp_path), str(tmp_path / "missing")])) == 5 and listed == [str(tmp_path / "b")]


def test_a_slow_folder_does_not_block_the_watch_of_another(tmp_path, monkeypatch):
    for name in ("slow", "fast"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.pt").write_bytes(b"x")
    reading, go_on, real = threading.Event(), threading.Event(), os.scandir

    def scandir(path):
        if str(path).endswith("slow"):
            reading.set()
            assert go_on.wait(60)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    watch = FolderWatch()
    with ThreadPoolExecutor(2) as pool:
        try:
            slow = pool.submit(watch.files, [str(tmp_path / "slow")])
            assert reading.wait(60)
            assert len(pool.submit(watch.files, [str(tmp_path / "fast")]).result(60)) == 1
        finally:
            go_on.set()
        assert len(slow.result(60)) == 1
