"""One source file: when its stamp is enough to know it."""

import os
import sys
from contextlib import nullcontext
from types import SimpleNamespace

from streamcache.dataset_cache.sources import source_files
from streamcache.dataset_cache.sources.memory import SourceMemory
from streamcache.dataset_cache.sources.scan import Counts, Inventory, take_inventory, walk_folder
from streamcache.dataset_cache.sources.source_files import STAMP_BYTES, UNSETTLED, is_settled, read_facts

from ...support.fixtures import settle


def inventory(root, memory: SourceMemory, counts: Counts | None = None, **options) -> Inventory:
    listings, _ = walk_folder(str(root), True, trust=options.get("trust", False))
    return take_inventory(listings, memory, counts or Counts(), **{"hash_new": True, **options})


def test_a1_an_edit_that_keeps_size_and_time_is_found_by_ctime(tree):
    path = tree / "b" / "1.txt"
    with SourceMemory(None) as memory:
        inventory(tree, memory)
        status = path.stat()
        path.write_text("B/1.PNG")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
        counts = Counts()
        found = inventory(tree, memory, counts)
    assert counts.opened == 1 and found.folders[str(tree / "b")]["1.txt"].text == "B/1.PNG"


def test_a_file_written_a_moment_ago_is_read_again_next_time(tree, monkeypatch):
    with SourceMemory(None) as memory:
        with monkeypatch.context() as patch:
            inventory(tree, memory)
            patch.setattr(source_files, "_TICK_NS", 10**12)  # this machine may be slow: a moment is what we say it is
            (tree / "0.txt").write_text("just now")
            assert not inventory(tree, memory).settled
        settle()
        counts = Counts()
        assert inventory(tree, memory, counts).settled and counts.opened == 1


def test_times_of_whole_seconds_settle_later():
    def stamp(mtime: int) -> bytes:
        return b"".join(n.to_bytes(8, sys.byteorder) for n in (1, mtime, 2, mtime))

    now = 10_000_000_123
    assert is_settled(stamp(9_900_000_001), now) and not is_settled(stamp(9_990_000_001), now)
    assert not is_settled(stamp(9_000_000_000), now) and is_settled(stamp(7_000_000_000), now)
    assert len(stamp(1)) == STAMP_BYTES == len(UNSETTLED)
    day, year = 24 * 3600 * 10**9, 365 * 24 * 3600 * 10**9
    assert is_settled(stamp(now + year), now), "a change would set the time back"
    assert not is_settled(stamp(now + day // 2), now), "the clock of a file server may be ahead"


def test_a9_an_unchanged_file_is_known_even_if_listings_have_no_inodes(tmp_path, picture, monkeypatch):
    picture("set/a.png")
    scandir, fields = os.scandir, ("st_size", "st_mtime_ns", "st_ctime_ns")

    class Entry:
        """A file as Windows lists it."""

        def __init__(self, entry: os.DirEntry) -> None:
            self.name, self.path = entry.name, entry.path
            self.is_dir, self.is_symlink, self._entry = entry.is_dir, entry.is_symlink, entry

        def stat(self) -> SimpleNamespace:
            found = self._entry.stat()
            return SimpleNamespace(st_ino=0, **{name: getattr(found, name) for name in fields})

    monkeypatch.setattr(source_files, "_LISTS_INODES", False)
    monkeypatch.setattr(os, "scandir", lambda path: nullcontext([Entry(e) for e in scandir(path)]))
    ((listing,), _) = walk_folder(str(tmp_path / "set"), recursive=False)
    settle()
    stamp, _ = read_facts(str(tmp_path / "set" / "a.png"), whole=True)
    assert list(listing.rows()) == [("a.png", stamp)]
