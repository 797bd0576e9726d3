"""clean removes exactly what the preview lists, and nothing that is current, leased or part of a build."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheBusy, CacheError, CacheWriter, SampleFacts, open_cache, preview_clean
from streamcache.dataset_cache.read import leases as lease_files
from streamcache.dataset_cache.upkeep import clean, verify

from ...support.datasets import content, flip, folder_bytes, latent, listing, put_sample, shard_files, write_set

pytestmark = pytest.mark.usefixtures("platform")

ALL = ("debris", "unused", "superseded")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Saved with 10 samples, then with 4, and opened by a reader in between."""
    folder = write_set(tmp_path / "my set ünï", range(10))
    open_cache(folder)
    return write_set(folder, range(4))


def removed_by(path: Path, *categories: str) -> tuple[int, int]:
    """(bytes that the preview announces, bytes that the folder lost)."""
    plan, before = preview_clean(path, categories), folder_bytes(path)
    clean(plan)
    return plan.bytes, before - folder_bytes(path)


def removal(path: Path, category: str):
    return preview_clean(path, [category]).removals[0]


def litter(path: Path) -> int:
    (path / ".build" / "compact-77").mkdir(parents=True)
    files = [path / ".dataset.json.99.tmp", path / ".build" / "compact-77" / "0"]
    files.append(path / "shards" / f"s-00099-{'a' * 32}.safetensors")
    for number, file in enumerate(files):
        file.write_bytes(b"x" * (100 + number))
    return len(files)


def test_c10_saving_4_over_10_loads_4_and_clean_reclaims_exactly_the_rest(path: Path):
    before = content(path)
    assert len(before) == 4
    unused = removal(path, "unused")
    assert unused.count == 18  # a latent, a caption and a thumbnail of 6 samples
    announced, gone = removed_by(path, "unused")
    assert announced == gone == unused.bytes > 6 * 1024
    assert content(path) == before
    assert removal(path, "unused") == type(unused)("unused")
    fresh = write_set(path.with_name("fresh"), range(4))
    assert sum(f.stat().st_size for f in shard_files(path)) <= sum(f.stat().st_size for f in shard_files(fresh))


def test_a18_nothing_is_removed_unless_requested(path: Path):
    assert all(open_cache(path).has(f"latent {i}") for i in range(10))
    before = listing(path)
    preview_clean(path)
    assert listing(path) == before
    with pytest.raises(CacheError, match="choose what to remove: debris, superseded, unused"):
        clean(path)
    with CacheWriter(path) as writer:  # the next run of 10 finds everything
        assert all(writer.has(f"latent {i}") for i in range(10))


def test_a17_a_moved_source_folder_leaves_no_entry_unused(tmp_path: Path):
    sources = tmp_path / "pictures"
    sources.mkdir()
    with CacheWriter(tmp_path / "set") as writer:
        for i in range(3):
            (sources / f"{i}.png").write_bytes(b"pixels")
            put_sample(writer, i, prefix=f"{sources}/")
    before = content(tmp_path / "set")
    shutil.move(sources, tmp_path / "elsewhere")
    assert [r.count for r in preview_clean(tmp_path / "set").removals] == [0, 0, 0]
    clean(tmp_path / "set", ALL)
    assert content(tmp_path / "set") == before


def test_a17_every_category_removes_exactly_what_the_preview_lists(path: Path):
    count = litter(path)
    found = removal(path, "debris")
    assert (found.count, found.bytes) == (count, 303)
    announced, gone = removed_by(path, *ALL)
    assert announced == gone > 303
    assert [r.count for r in preview_clean(path).removals] == [0, 0, 0] and list(verify(path)) == []


@pytest.mark.parametrize("category", ALL)
def test_a17_one_category_leaves_the_others_alone(path: Path, category: str):
    litter(path)
    reader = open_cache(path)
    write_set(path, range(3))
    del reader  # its generation stays: nothing is published after it
    others = [name for name in ALL if name != category]
    before = {name: removal(path, name) for name in others}
    announced, gone = removed_by(path, category)
    assert announced == gone > 0
    if category != "unused":  # removing unused entries makes the current generation an older one, and removes it
        assert {name: removal(path, name) for name in others} == before


def test_superseded_generations_are_removed_once_their_reader_is_done(path: Path):
    reader = open_cache(path)
    old = reader.generation
    write_set(path, range(2))
    assert (path / f"index-{old}.safetensors").exists()
    found = removal(path, "superseded")
    assert found.count == 1 and found.held_by
    with pytest.raises(CacheBusy, match=str(os.getpid())):
        clean(path, ["superseded"])
    assert len(reader) == 4 and reader[3].realize().source == "3.png"
    del reader
    announced, gone = removed_by(path, "superseded")
    assert announced == gone > 0 and not (path / f"index-{old}.safetensors").exists()
    assert len(content(path)) == 2


def test_unused_entries_are_kept_while_a_process_reads(path: Path):
    reader, before = open_cache(path), listing(path)
    with pytest.raises(CacheBusy, match=f"unused: process {os.getpid()}"):
        clean(path, ["unused"])
    assert listing(path) == before
    del reader
    clean(path, ["unused"])


def test_a_reader_of_an_older_generation_keeps_the_shards_that_both_use(path: Path):
    reader = open_cache(path)
    write_set(path, range(2))
    with pytest.raises(CacheBusy):
        clean(path, ["unused"])
    assert [sample.realize().source for sample in reader] == [f"{i}.png" for i in range(4)]


def test_debris_is_removed_even_while_a_process_reads(path: Path):
    reader = open_cache(path)
    litter(path)
    announced, gone = removed_by(path, "debris")
    assert announced == gone == 303 and len(reader) == 4


def test_a_reader_in_another_process_is_named(path: Path, tmp_path: Path):
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[3])!r}); import tests.conftest\n"
        "from streamcache.dataset_cache import open_cache\n"
        f"cache = open_cache({str(path)!r}); print('open', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "open\n"
        with pytest.raises(CacheBusy, match=f"process {child.pid} on"):
            clean(path, ["unused"])
    finally:
        child.communicate("", timeout=300)
    clean(path, ["unused"])


def test_clean_is_refused_while_another_process_writes(path: Path):
    writer = CacheWriter(path, append=True)
    litter(path)
    assert removal(path, "debris").count == 0  # it may be the writer's
    with pytest.raises(CacheBusy, match="is writing to it"):
        clean(path, ["debris"])
    writer.close()
    assert clean(path, ["debris"]).removals[0].count == 3


def test_an_unfinished_build_is_kept_with_the_shards_it_shares(path: Path):
    writer = CacheWriter(path)
    put_sample(writer, 42)
    writer.put("twin of 9", latent(9), "latent")  # its bytes are those of a sample that is unused now
    writer.flush()
    writer.close()
    del writer  # it maps the index, which Windows would not remove then
    clean(path, ALL)
    with CacheWriter(path) as writer:
        assert writer.has("latent 42") and writer.has("twin of 9")
        writer.sample({"latent": ["twin of 9"]}, SampleFacts(source="twin"))
    assert open_cache(path, check=True)[0].realize().source == "twin"


def test_an_outdated_plan_is_refused(path: Path):
    plan = preview_clean(path, ["unused"])
    write_set(path, range(5))
    before = listing(path)
    with pytest.raises(CacheError, match="changed since the preview"):
        clean(plan)
    assert listing(path) == before


def test_cleaning_a_damaged_cache_removes_no_data(path: Path):
    flip(path / "dataset.json", 400)
    before = listing(path)
    with pytest.raises(CacheError):
        clean(path, ALL)
    assert listing(path) == before


def test_recent_generations_are_kept_if_leases_are_impossible(tmp_path: Path):
    path = write_set(tmp_path / "set", range(4))
    write_set(path, range(2))
    assert not lease_files.were_possible(path)
    found = removal(path, "unused")
    assert (found.count, found.bytes) == (0, 0) and "24 hours" in found.kept
    before = listing(path)
    clean(path, ALL)
    assert listing(path) == before
    long_ago = time.time() - 25 * 3600
    for index in path.glob("index-*"):
        os.utime(index, (long_ago, long_ago))
    announced, gone = removed_by(path, *ALL)
    assert announced == gone > 0


def test_a_generation_dated_years_ahead_does_not_block_cleaning_for_ever(tmp_path: Path):
    path = write_set(tmp_path / "set", range(4))
    write_set(path, range(2))
    ahead = time.time() + 40 * 365 * 24 * 3600
    for index in path.glob("index-*"):
        os.utime(index, (ahead, ahead))
    assert "24 hours" in removal(path, "unused").kept  # it counts as written now …
    for index in path.glob("index-*"):
        assert abs(index.stat().st_mtime - time.time()) < 3600
        os.utime(index, (time.time() - 25 * 3600,) * 2)  # … and a day later it is old
    announced, gone = removed_by(path, *ALL)
    assert announced == gone > 0


def test_a_generation_dated_years_ahead_takes_the_place_of_no_other(tmp_path: Path):
    path = write_set(tmp_path / "set", range(4))
    write_set(path, range(2))
    older = shutil.copy(next(path.glob("index-*")), path / f"index-{'0' * 32}.safetensors")
    os.utime(older, (time.time() + 40 * 365 * 24 * 3600,) * 2)
    found = removal(path, "superseded")
    assert found.count == 0 and not found.files, "readers of the last generation cannot be seen here"


def test_an_unpublished_build_has_only_debris(tmp_path: Path):
    writer = CacheWriter(tmp_path / "set")
    put_sample(writer, 1)
    writer.flush()
    writer.close()
    (tmp_path / "set" / ".index.5.tmp").write_bytes(b"123")
    announced, gone = removed_by(tmp_path / "set", *ALL)
    assert announced == gone == 3
    with CacheWriter(tmp_path / "set") as writer:
        assert writer.has("latent 1")


def test_files_behind_a_link_are_not_cleaned(path: Path, tmp_path: Path):
    other = write_set(tmp_path / "other", range(3))
    shutil.rmtree(path / "shards")
    os.symlink(other / "shards", path / "shards")
    assert removal(path, "debris").count == 0
    with pytest.raises(CacheError, match="symbolic link"):
        clean(path, ["debris", "superseded"])
    assert len(content(other)) == 3


def test_an_unknown_category_and_a_missing_dataset_are_refused(path: Path, tmp_path: Path):
    with pytest.raises(CacheError, match="unknown category 'everything'"):
        clean(path, ["everything"])
    with pytest.raises(CacheError, match="no such cache"):
        preview_clean(tmp_path / "nowhere")


def test_cleaning_twice_changes_nothing_the_second_time(path: Path):
    clean(path, ALL)
    before = listing(path)
    assert clean(path, ALL).bytes == 0
    assert listing(path) == before


def test_many_generations_and_sets_still_add_up(tmp_path: Path):
    path = tmp_path / "set"
    for round_ in range(12):
        write_set(path, range(round_, round_ + 5), append=round_ % 3 == 0)
        reader = open_cache(path)
    del reader
    before = content(path)
    announced, gone = removed_by(path, *ALL)
    assert announced == gone > 0
    assert content(path) == before and list(verify(path)) == []
