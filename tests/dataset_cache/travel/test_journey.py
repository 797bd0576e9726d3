"""push, pull and sync: only what is missing travels, readers see whole generations, and no work is overwritten."""

import threading
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheBusy, CacheError, CacheWriter, PublishLock, duplicate, open_cache, verify
from streamcache.dataset_cache.travel import KEEP, Travel, TravelReport, carrying, journey, pull, push, sync
from streamcache.dataset_cache.travel.carrying import Meter

from ...support.datasets import content, flip, listing, shard_files, write_set


@pytest.fixture
def near(tmp_path: Path) -> Path:
    return write_set(tmp_path / "near ünï", range(5))


@pytest.fixture
def far(tmp_path: Path) -> Path:
    return tmp_path / "nas" / "far"


def files_of(path: Path) -> dict[str, int]:
    return {name: size for name, size in listing(path).items() if not name.startswith(".travel")}


@pytest.mark.usefixtures("platform")
def test_f6_a_pushed_cache_is_the_same_cache(near: Path, far: Path):
    report = push(near, far)
    assert content(far) == content(near) and files_of(far) == files_of(near) and list(verify(far)) == []
    assert (report.files, report.bytes) == (3, report.total_bytes) and report.replaced is None
    assert open_cache(far).generation == open_cache(near).generation


def test_f6_only_what_the_other_side_lacks_is_sent(near: Path, far: Path):
    push(near, far)
    assert push(near, far).files == 0
    write_set(near, range(6), append=True)
    before = files_of(far)
    report = push(near, far)
    new = {name: size for name, size in files_of(near).items() if name not in before and name != "dataset.json"}
    assert (report.files, report.bytes) == (len(new), sum(new.values())) and content(far) == content(near)


@pytest.mark.usefixtures("platform")
def test_a_pull_brings_a_generation_to_a_new_folder_and_then_its_successors(near: Path, far: Path, tmp_path: Path):
    push(near, far)
    copy = tmp_path / "copy"
    assert pull(far, copy).files == 3
    write_set(near, range(7))
    push(near, far)
    assert pull(far, copy).files < 4 and content(copy) == content(near) and list(verify(copy)) == []


def test_a_dry_run_says_what_would_be_sent_and_changes_nothing(near: Path, far: Path):
    report = push(near, far, Travel(dry_run=True))
    assert report.files == 3 and "Would push" in str(report) and not far.exists()
    assert ".travel" not in "".join(listing(near))


def test_f6_sync_brings_the_newer_generation_in_either_direction(near: Path, far: Path):
    assert sync(near, far).action == "push"
    assert sync(near, far).action == "none"
    write_set(near, range(6))
    assert sync(near, far).action == "push" and len(open_cache(far)) == 6
    write_set(far, range(7))
    assert sync(near, far).action == "pull" and len(open_cache(near)) == 7


@pytest.mark.parametrize("keep", KEEP)
def test_f6_when_both_sides_changed_the_user_says_which_one_stays(near: Path, far: Path, keep: str):
    push(near, far)
    mine, theirs = content(write_set(near, range(3))), content(write_set(far, range(4)))
    before = files_of(near), files_of(far)
    for refused in (lambda: sync(near, far), lambda: push(near, far), lambda: pull(far, near)):
        with pytest.raises(CacheError, match="both sides have changed") as told:
            refused()
        assert all(open_cache(each).generation[:12] in str(told.value) for each in (near, far))
        assert "--keep local" in str(told.value)
    assert (files_of(near), files_of(far)) == before
    sync(near, far, keep)
    assert content(near) == content(far) == (mine if keep == "local" else theirs)
    assert sync(near, far).action == "none"


def test_a_push_or_pull_against_the_newer_side_names_the_other_command(near: Path, far: Path):
    push(near, far)
    write_set(far, range(6))
    with pytest.raises(CacheError, match="is newer than .*; pull it"):
        push(near, far)
    pull(far, near)
    write_set(near, range(7))
    with pytest.raises(CacheError, match="is newer than .*; push it"):
        pull(far, near)


def test_another_dataset_or_foreign_files_are_never_replaced(near: Path, far: Path, tmp_path: Path):
    duplicate(near, far)
    with pytest.raises(CacheError, match="different datasets"):
        sync(near, far, "local")
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "thesis.txt").write_text("x")
    with pytest.raises(CacheError, match=r"contains thesis\.txt"):
        push(near, strange)
    assert [file.name for file in strange.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("where", ["itself", "inside"])
def test_a_cache_does_not_travel_into_itself(near: Path, where: str):
    with pytest.raises(CacheError, match="the same place|inside the other"):
        push(near, near if where == "itself" else near / "inside")


@pytest.mark.parametrize("journey", [push, lambda near, far: pull(far, near), sync])
def test_a_file_is_no_place_for_a_cache(near: Path, tmp_path: Path, journey):
    (tmp_path / "plain.zip").write_text("x")
    for sides in ((near, tmp_path / "plain.zip"), (tmp_path / "plain.zip", near)):
        with pytest.raises(CacheError, match=r"plain\.zip: is a file, not the folder of a cache; name a folder"):
            journey(*sides)


def test_two_places_without_a_cache_are_an_error(tmp_path: Path):
    for refused in (lambda: push(tmp_path / "a", tmp_path / "b"), lambda: pull(tmp_path / "a", tmp_path / "b")):
        with pytest.raises(CacheError, match="nothing is published"):
            refused()
    with pytest.raises(CacheError, match="neither"):
        sync(tmp_path / "a", tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_f6_a_damaged_shard_is_not_published(near: Path, far: Path):
    flip(shard_files(near)[0], -40 + shard_files(near)[0].stat().st_size)
    with pytest.raises(CacheError, match="does not match|do not match"):
        push(near, far)
    assert not (far / "dataset.json").exists()


def test_verify_finds_and_replaces_what_is_damaged_on_the_other_side(near: Path, far: Path):
    push(near, far)
    flip(shard_files(far)[0], -40 + shard_files(far)[0].stat().st_size)
    assert push(near, far).files == 0
    assert push(near, far, Travel(verify=True)).files == 1
    assert list(verify(far)) == [] and sync(near, far, how=Travel(verify=True)).files == 0


def test_a_missing_or_short_shard_of_the_same_generation_is_sent_again(near: Path, far: Path):
    push(near, far)
    shard_files(far)[0].unlink()
    shard_files(far, "t")[0].write_bytes(b"short")
    assert push(near, far).files == 2 and list(verify(far)) == []


@pytest.mark.parametrize("side", ["near", "far"])
def test_a_sync_of_equal_generations_sends_what_either_side_lacks(near: Path, far: Path, side: str):
    push(near, far)
    hurt = near if side == "near" else far
    shard_files(hurt)[0].unlink()
    report = sync(near, far)
    assert (report.action, report.files) == ("pull" if side == "near" else "push", 1)
    assert "Nothing to do" not in str(report) and list(verify(hurt)) == []
    assert sync(near, far).action == "none"


@pytest.mark.usefixtures("platform")
def test_f6_an_interrupted_pull_goes_on_from_its_partial_file(near: Path, far: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(carrying, "PART_BYTES", 1000)
    add, added = Meter.add, []

    def cut(meter: Meter, nbytes: int, carried: bool = True) -> None:
        add(meter, nbytes, carried)
        added.append(nbytes)
        if len(added) == 12:
            raise ConnectionError("cut")

    with monkeypatch.context() as patch:
        patch.setattr(Meter, "add", cut)
        with pytest.raises(CacheError, match="what has arrived is kept"):
            pull(near, far)
    arrived = sum(file.stat().st_size for file in (far / ".travel/incoming").iterdir() if file.name != "dataset.json")
    assert arrived >= 9_000 and not (far / "dataset.json").exists()
    assert {problem.kind for problem in verify(far)} == {"missing", "debris"}
    report = pull(near, far)
    assert (report.resumed, report.resumed + report.bytes) == (arrived, report.total_bytes)
    assert content(far) == content(near) and list(verify(far)) == [] and not (far / ".travel/incoming").exists()


def test_a_partial_file_with_wrong_bytes_is_fetched_again(near: Path, far: Path):
    name = shard_files(near)[0].name
    (far / ".travel/incoming").mkdir(parents=True)
    (far / ".travel/incoming" / name).write_bytes(bytes(3000))
    report = pull(near, far)
    assert report.replaced is None and (report.resumed, report.bytes) == (0, report.total_bytes)
    assert content(far) == content(near)


def test_f6_a_reader_of_the_old_generation_keeps_it(near: Path, far: Path, tmp_path: Path):
    push(near, far)
    pull(far, tmp_path / "copy")
    reader = open_cache(tmp_path / "copy")
    before = content(reader)
    write_set(near, range(2))
    push(near, far)
    pull(far, tmp_path / "copy")
    assert content(reader) == before and len(open_cache(tmp_path / "copy")) == 2


def test_f6_a_writer_of_the_folder_is_respected(near: Path, far: Path):
    push(near, far)
    write_set(far, range(7))
    lock = PublishLock(near)
    try:
        with pytest.raises(CacheBusy, match="is writing to it"):
            pull(far, near)
    finally:
        lock.release()
    assert pull(far, near).files and len(open_cache(near)) == 7


def test_f6_a_generation_that_was_published_meanwhile_is_not_overwritten(
    near: Path, far: Path, monkeypatch: pytest.MonkeyPatch
):
    push(near, far)
    write_set(near, range(6))
    carry = journey.carry

    def slow(*args, **options):
        write_set(far, range(3))
        return carry(*args, **options)

    monkeypatch.setattr(journey, "carry", slow)
    with pytest.raises(CacheError, match="another process was first: .*3 samples") as told:
        push(near, far)
    assert open_cache(far).generation[:12] in str(told.value) and len(open_cache(far)) == 3


def test_f6_of_two_publishers_at_once_exactly_one_wins(near: Path, far: Path, tmp_path: Path):
    push(near, far)
    pull(far, tmp_path / "other")
    sides = [write_set(near, range(6)), write_set(tmp_path / "other", range(8))]
    results: list[TravelReport | str] = []
    start = threading.Barrier(2)

    def publish(side: Path) -> None:
        start.wait()
        try:
            results.append(push(side, far))
        except CacheError as error:
            results.append(str(error))

    threads = [threading.Thread(target=publish, args=(side,)) for side in sides]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len([each for each in results if not isinstance(each, str)]) == 1
    assert content(far) in [content(side) for side in sides] and list(verify(far)) == []


def test_an_unfinished_build_keeps_its_shards_through_a_pull(near: Path, far: Path):
    push(near, far)
    write_set(far, range(9))
    with pytest.raises(RuntimeError), CacheWriter(near, append=True) as writer:
        writer.add(latent={"samples": torch.ones(1, 4, 8, 8)})
        writer.flush()
        raise RuntimeError("stopped")
    pull(far, near)
    with CacheWriter(near, append=True) as writer:
        assert writer.recovered_entries == 1


def test_a_linked_travel_folder_is_refused(near: Path, far: Path, tmp_path: Path):
    far.mkdir(parents=True)
    try:
        (far / ".travel").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    except OSError:
        pytest.skip("no links here")
    with pytest.raises(CacheError, match="symbolic link"):
        push(near, far)
