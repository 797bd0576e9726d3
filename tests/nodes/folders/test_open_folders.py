"""Folders that pages look at: one state as long as nothing changes, and few of them in memory."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheBusy, CacheError, curate
from streamcache.nodes.folders import open_folders
from streamcache.nodes.folders.open_folders import LAST, forget_first, look_at, look_first

from .pictures import write_folder


@pytest.fixture(autouse=True)
def nothing_open():
    open_folders._open.clear()


def settle(folder: Path) -> None:
    """Make the files old: times of new ones cannot be relied on, so that they are read each time."""
    for path in folder.rglob("*"):
        os.utime(path, (1e9, 1e9))


def test_the_state_stays_until_something_changes(tmp_path: Path):
    folder = write_folder(tmp_path / "cats", {"a.png": "one", "b.png": ""})
    settle(folder)
    first = look_at(folder)
    assert look_at(folder).state == first.state
    for change in (
        lambda: (folder / "b.txt").write_text("new"),
        lambda: (folder / "b.txt").write_text("newer"),
        lambda: (folder / "streamcache.json").write_text('{"images": {"a.png": {"excluded": true}}}'),
        lambda: (folder / "b.png").unlink(),
    ):
        before = look_at(folder).state
        change()
        assert look_at(folder).state != before


def test_files_that_are_too_new_to_be_trusted_give_the_same_state(tmp_path: Path):
    folder = write_folder(tmp_path / "cats", {"a.png": "one"})
    assert look_at(folder) is look_at(folder)


def test_a_known_state_is_shown_without_a_look_at_the_disk(tmp_path: Path):
    folder = write_folder(tmp_path / "cats", {"a.png": "one"})
    first = look_at(folder)
    (folder / "a.txt").write_text("two")
    assert look_at(folder, first.state) is first
    second = look_at(folder)
    assert second.view.images[0].caption.text == "two"
    assert look_at(folder, first.state) is first, "the page before the edit still scrolls"
    (folder / "a.txt").write_text("three")
    third = look_at(folder)
    assert look_at(folder, first.state) is third, "older ones are forgotten: the disk is read"


def test_results_are_kept_until_the_folder_changes_and_few_of_them(tmp_path: Path):
    now = look_at(write_folder(tmp_path / "cats", {"a.png": "one"}))
    made = []
    for _ in range(2):
        for number in range(3):
            now.result(number, lambda number=number: made.append(number) or number)
    assert made == [0, 1, 2]
    for number in range(100):
        now.result(number, lambda number=number: number)
    assert len(now._results) == open_folders._MAX_RESULTS


def test_few_folders_stay_in_memory(tmp_path: Path):
    folders = [write_folder(tmp_path / f"f{number}", {"a.png": ""}) for number in range(open_folders.MAX_FOLDERS + 2)]
    for folder in folders:
        look_at(folder)
    kept = [os.path.realpath(folder) for folder in folders[-open_folders.MAX_FOLDERS :]]
    assert list(open_folders._open) == kept


def test_large_folders_leave_memory_before_small_ones_are_many(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(open_folders, "MAX_IMAGES", 3)
    big, small = (write_folder(tmp_path / name, {f"{n}.png": "" for n in range(3)}) for name in ("big", "small"))
    look_at(big)
    look_at(small)
    assert list(open_folders._open) == [os.path.realpath(small)]


def test_idle_folders_leave_memory(tmp_path: Path, monkeypatch):
    one, other = (write_folder(tmp_path / name, {"a.png": ""}) for name in ("one", "other"))
    look_at(one)
    monkeypatch.setattr(open_folders, "IDLE_SECONDS", -1.0)
    look_at(other)
    assert list(open_folders._open) == [os.path.realpath(other)]


@pytest.mark.skipif(os.name == "nt", reason="links need privileges there")
def test_images_behind_a_link_are_shown_but_not_edited_here(tmp_path: Path):
    folder = write_folder(tmp_path / "cats", {"a.png": "", "in/b.png": ""})
    write_folder(tmp_path / "elsewhere", {"c.png": ""})
    (folder / "out").symlink_to(tmp_path / "elsewhere")
    now = look_at(folder)
    names = [image.name for image in now.view.images]
    assert names == ["a.png", "in/b.png", "out/c.png"]
    assert set(now.linked(names)) == {"out/c.png"}


def test_a_large_folder_that_is_being_read_shows_its_images_and_others_do_not_wait(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(open_folders, "LARGE", 2)
    monkeypatch.setattr(open_folders, "PATIENCE_SECONDS", 0.01)
    folder = write_folder(tmp_path / "cats", {"a.png": "one", "b.png": "", "c.png": "three"})
    reached, go_on, seen = threading.Event(), threading.Event(), []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        reached.set()
        assert go_on.wait(60)

    first = look_first(folder)
    assert not first.view.whole and look_first(folder, first.state) is first
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(look_at, folder, progress=progress)
        try:
            assert reached.wait(60)
            assert look_first(folder) is first, "the page still gets its pictures"
            assert [image.caption.text for image in first.view.images[:2]] == ["one", ""]
            with pytest.raises(CacheBusy, match="its images are being read"):
                look_at(folder)
        finally:
            go_on.set()
        now = reading.result()
    assert seen == [(0, 5)] and now.view.whole
    assert look_first(folder) is now, "nothing is left of the first look"
    assert list(first.view.images) == list(now.view.images)


def test_images_of_a_large_folder_are_edited_before_it_is_read(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(open_folders, "LARGE", 0)
    folder = write_folder(tmp_path / "cats", {"a.png": "one", "sub/b.png": ""})
    first = look_first(folder, LAST)
    for name, text in {"a.png": "two", "sub/b.png": "new"}.items():
        caption = first.view.find(name).caption
        change = curate.CaptionChange(name, caption.text, text, caption.stamp)
        assert curate.apply_changes(first.view, [change]).changed == [name]
    curate.choose_images(first.view, ["sub/b.png"], repeats=3)
    forget_first(folder)
    second = look_first(folder, first.state)
    assert second is not first and not second.view.whole
    found = [second.view.find(name) for name in ("a.png", "sub/b.png")]
    assert [(image.caption.text, image.repeats) for image in found] == [("two", 1), ("new", 3)]
    with pytest.raises(CacheError, match="not in"):
        second.view.find("c.png")


def test_a_small_folder_is_read_at_once(tmp_path: Path):
    assert look_first(write_folder(tmp_path / "cats", {"a.png": "one"})).view.whole


def test_a_read_that_was_stopped_leaves_the_first_look_and_can_begin_again(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(open_folders, "LARGE", 0)
    folder = write_folder(tmp_path / "cats", {"a.png": "one"})
    first = look_first(folder)

    def stop(done: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        look_at(folder, progress=stop)
    assert look_first(folder) is first
    assert look_at(folder).view.whole
