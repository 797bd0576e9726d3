"""What is kept open: one of a generation, let go when it is idle, and opened beside other threads' use."""

import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from streamcache.dataset_cache.format.manifest import MANIFEST
from streamcache.nodes.library.open_caches import OpenPool


@dataclass(eq=False)
class Thing:
    generation: str


def published(folder: Path) -> Path:
    folder.mkdir()
    (folder / MANIFEST).touch()
    return folder


def test_a_generation_is_opened_once_and_again_after_its_release(tmp_path: Path):
    folder, opened = published(tmp_path / "set"), []
    kept = OpenPool(lambda path, generation: opened.append(generation) or Thing("a"))
    first = kept.get(folder)
    assert kept.get(folder, "a") is first and opened == [""]
    kept.close(tmp_path / "other")
    assert kept.get(folder, "a") is first
    kept.close(folder)
    assert kept.get(folder, "a") is not first and opened == ["", "a"]


def test_a_removed_cache_is_not_returned_again(tmp_path: Path):
    folder = published(tmp_path / "set")
    kept = OpenPool(
        lambda path, generation: Thing("a") if (path / MANIFEST).exists() else pytest.fail("asked, as it should be")
    )
    kept.get(folder, "a")
    (folder / MANIFEST).unlink()
    with pytest.raises(pytest.fail.Exception):
        kept.get(folder, "a")


def test_the_least_recently_used_cache_is_closed_first(tmp_path: Path):
    folders = [published(tmp_path / str(n)) for n in range(3)]
    kept = OpenPool(lambda path, generation: Thing("a"), most=2)
    first, second = kept.get(folders[0]), kept.get(folders[1])
    assert kept.get(folders[0], "a") is first
    kept.get(folders[2])
    assert len(kept) == 2 and kept.get(folders[0], "a") is first and kept.get(folders[1], "a") is not second


def test_a_tick_closes_only_idle_caches(tmp_path: Path):
    folder = published(tmp_path / "set")
    kept = OpenPool(lambda path, generation: Thing("a"))
    thing = kept.get(folder)
    kept.tick()
    assert kept.get(folder, "a") is thing
    kept._idle_seconds = 0.0
    kept.tick()
    assert len(kept) == 0


def test_a_slow_folder_does_not_block_others_and_concurrent_opens_share_one_cache(tmp_path: Path):
    slow, quick = published(tmp_path / "slow"), published(tmp_path / "quick")
    waiting, go_on = threading.Barrier(3), threading.Event()

    def open_slowly(path: Path, generation: str) -> Thing:
        if path == slow:
            waiting.wait(30)
            assert go_on.wait(30)
        return Thing("a")

    kept, found = OpenPool(open_slowly), []
    threads = [threading.Thread(target=lambda: found.append(kept.get(slow))) for _ in range(2)]
    for thread in threads:
        thread.start()
    waiting.wait(30)
    assert kept.get(quick).generation == "a"
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert len(found) == 2 and found[0] is found[1]
