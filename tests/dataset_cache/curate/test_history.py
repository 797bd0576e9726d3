"""The batches of a folder survive a restart, are bounded, and a damaged one hides no other."""

import pytest

from streamcache.dataset_cache.curate import history
from streamcache.dataset_cache.curate.history import FileEdit, History, editing
from streamcache.errors import CacheBusy

BYTES = b"caf\xe9 \xff\xfe"


def record(root, title: str = "one", before: bytes | None = BYTES):
    return History(root).record(title, [FileEdit("a.txt", ("a.png", "a.jpg"), before, "00ff")])


def test_a_batch_comes_back_as_it_was_recorded(tmp_path):
    record(tmp_path)
    record(tmp_path, "two", None)
    batch = History(tmp_path).last()
    assert batch.title == "two" and batch.edits == (FileEdit("a.txt", ("a.png", "a.jpg"), None, "00ff"),)
    History(tmp_path).forget(batch.path)
    assert History(tmp_path).last().edits[0].before == BYTES


def test_folders_have_histories_of_their_own(tmp_path):
    record(tmp_path / "one")
    assert History(tmp_path / "two").last() is None


def test_a_damaged_batch_is_passed_over(tmp_path):
    record(tmp_path)
    record(tmp_path, "two").write_bytes(b"damaged")
    assert History(tmp_path).last().title == "one"


def test_the_oldest_batches_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "MOST_BATCHES", 3)
    paths = [record(tmp_path, str(number)) for number in range(5)]
    assert [path.exists() for path in paths] == [False, False, True, True, True]
    monkeypatch.setattr(history, "MOST_BYTES", 1)
    last = record(tmp_path, "last")
    assert list(last.parent.glob("*.batch")) == [last]


def test_numbers_go_on_after_an_undo(tmp_path):
    record(tmp_path)
    path = record(tmp_path, "two")
    History(tmp_path).forget(path)
    assert record(tmp_path, "three") == path


def test_one_process_edits_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "_PATIENCE_SECONDS", 0.0)
    with editing(tmp_path):
        with pytest.raises(CacheBusy, match="another process is editing"), editing(tmp_path):
            pass
        with editing(tmp_path / "other"):
            pass
    with editing(tmp_path):
        pass
