"""Older files on the far side: kept, until pruning is asked for and their time of grace is over."""

import json
import shutil
import time
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheBusy, LocalStorage, PublishLock, clean, open_cache, verify
from streamcache.dataset_cache.travel import Travel, journey, push, superseded, sync

from ...support.datasets import write_set

AT_ONCE = Travel(prune=True, grace=0)


@pytest.fixture
def three(tmp_path: Path) -> tuple[Path, Path, list[set[str]]]:
    """A cache that was pushed in three generations without a common shard, and the shards of each."""
    near, far, found = tmp_path / "near", tmp_path / "far", []
    for samples in (range(3), range(10, 13), range(20, 23)):
        write_set(near, samples)
        clean(near, ["unused", "superseded"])
        push(near, far)
        found.append({file.name for file in (near / "shards").iterdir()})
        shutil.copytree(near, tmp_path / f"backup {len(found)}")
    return near, far, found


def shards(path: Path) -> set[str]:
    return {file.name for file in (path / "shards").iterdir()}


def test_f6_older_shards_stay_without_prune(three):
    _, far, (first, second, third) = three
    assert shards(far) == first | second | third


def test_f6_pruning_keeps_the_current_and_the_last_generation(three):
    near, far, (_, second, third) = three
    assert push(near, far, AT_ONCE).pruned.files
    assert shards(far) == second | third
    assert len(open_cache(far)) == 3


def test_f6_pruning_waits_for_the_time_of_grace_from_when_a_file_was_superseded(three):
    near, far, (first, second, third) = three
    report = push(near, far, Travel(prune=True, grace=3600))
    assert report.pruned.files == 0 and report.pruned.waiting and shards(far) == first | second | third
    state = json.loads((far / ".travel/superseded.json").read_text())
    state["since"] = dict.fromkeys(state["since"], time.time() - 4000)
    (far / ".travel/superseded.json").write_text(json.dumps(state))
    assert push(near, far, Travel(prune=True, grace=3600, dry_run=True)).pruned.files == report.pruned.waiting
    assert shards(far) == first | second | third
    push(near, far, Travel(prune=True, grace=3600))
    assert shards(far) == second | third


@pytest.mark.parametrize("damage", ["", "[]", '{"last": ["../../x"], "since": {}}', '{"last": 3}'])
def test_a_damaged_note_only_begins_the_time_of_grace_again(three, damage: str):
    near, far, found = three
    (far / ".travel/superseded.json").write_text(damage)
    assert push(near, far, Travel(prune=True, grace=3600)).pruned.files == 0
    assert shards(far) == set.union(*found)


def test_a_date_ahead_of_the_clock_counts_as_now(three):
    near, far, _ = three
    state = json.loads((far / ".travel/superseded.json").read_text())
    state["since"] = dict.fromkeys(state["since"], time.time() + 1e6)
    (far / ".travel/superseded.json").write_text(json.dumps(state))
    push(near, far, Travel(prune=True, grace=3600))
    since = json.loads((far / ".travel/superseded.json").read_text())["since"]
    assert since and all(began <= time.time() for began in since.values())


def test_files_that_a_reader_uses_stay(three):
    near, far, _ = three
    reader = open_cache(far)
    write_set(near, range(30, 33))
    push(near, far)
    before = shards(far)
    assert push(near, far, AT_ONCE).pruned.files == 0 and shards(far) == before
    del reader


def test_pruning_waits_while_another_process_publishes(three):
    near, far, found = three
    lock = PublishLock(far)
    try:
        assert push(near, far, AT_ONCE).pruned.files == 0
    finally:
        lock.release()
    assert shards(far) == set.union(*found)


def test_what_is_pruned_in_the_moment_of_publishing_is_put_back(three, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _, far, (first, _, _) = three
    note = journey.note_superseded

    def pruned_elsewhere(*args) -> None:
        note(*args)
        for name in first:
            (far / "shards" / name).unlink()

    monkeypatch.setattr(journey, "note_superseded", pruned_elsewhere)
    sync(tmp_path / "backup 1", far, "local")  # lists again what is still there
    assert not first - shards(far)
    assert len(open_cache(far)) == 3 and [each.kind for each in verify(far) if each.kind != "debris"] == []


def test_a_pruner_says_what_was_published_again_while_it_removed(
    three, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _, far, (first, _, _) = three
    manifest, remove = (tmp_path / "backup 1/dataset.json").read_bytes(), LocalStorage.remove

    def publish_first(storage: LocalStorage, name: str) -> bool:
        if name.startswith("shards/"):
            (far / "dataset.json").write_bytes(manifest)  # as a publisher at an address, where there is no lock
        return remove(storage, name)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "remove", publish_first)
        with pytest.raises(CacheBusy, match="are needed now; run .streamcache sync. where"):
            superseded.prune(LocalStorage(far), 0)
    assert first - shards(far)
    assert sync(tmp_path / "backup 1", far).action == "push" and not first - shards(far)
