"""An index that grows by files of what is new: nothing is lost, numbers are right, and files stay few."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamcache.dataset_cache import CacheError, CacheWriter, SampleFacts, open_cache, read_manifest
from streamcache.dataset_cache.format import digest_key
from streamcache.dataset_cache.read.leases import Lease
from streamcache.dataset_cache.upkeep import clean, compact, duplicate, overview, preview_clean, repair, verify
from streamcache.dataset_cache.write import checked, growth, open_checked
from streamcache.dataset_cache.write.checked import SMALL_INDEX

from ...support.datasets import SHARED, conditioning, content, flip, latent, put_sample, shard_holding, write_set
from ...support.samples import bits, same


@pytest.fixture
def always_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every index were too large to be written again."""
    monkeypatch.setattr(checked, "SMALL_INDEX", 0)
    monkeypatch.setattr(growth, "SMALL_INDEX", 0)


@pytest.fixture
def grown(tmp_path: Path, always_grows: None) -> Path:
    """Twelve samples whose index is in five files."""
    path = write_set(tmp_path / "grown", range(8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growth, "_file_size", lambda arrays, fields: 0)  # nothing is taken in
        for i in range(8, 12):
            write_set(path, [i], append=True)
    assert len(read_manifest(path).segments) == 4 and read_manifest(path).requires == ("segments",)
    return path


def whole(path: Path, samples: range) -> Path:
    return write_set(path, samples)


def stamps(path: Path) -> dict[str, tuple[int, int]]:
    return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in path.glob("index-*")}


def assert_counts_are_right(path: Path) -> None:
    """What the manifest says of the samples is what a look at all of them says."""
    manifest = read_manifest(path)
    current = open_checked(path, manifest)
    arrays = current.arrays
    numbers = arrays.samples["bucket"]
    assert manifest.counts == {
        "samples": len(arrays.samples),
        "entries": len(arrays.entries),
        "unused": int((~current.used).sum()),
    }
    assert [bucket["samples"] for bucket in manifest.buckets] == [
        int((numbers == n).sum()) for n in range(len(manifest.buckets))
    ]


# Reading


def test_several_files_answer_as_one(grown, tmp_path):
    alone = whole(tmp_path / "whole", range(12))
    assert content(grown) == content(alone)
    one, other = open_cache(grown), open_cache(alone)
    for name in ("bucket", "set", "repeats", "weight", "original_size", "crop"):
        assert np.array_equal(one.column(name), other.column(name)), name
    assert {str(b): rows.tolist() for b, rows in one.buckets().items()} == {
        str(b): rows.tolist() for b, rows in other.buckets().items()
    }
    for i in range(12):
        assert one.keys(i) == other.keys(i) and same(
            one.read_batch([i]).conditionings, other.read_batch([i]).conditionings
        )
        (field, parts), (_, expected) = (cache.stored_entry(f"latent {i}") for cache in (one, other))
        assert field == "latent" and parts.leaves == expected.leaves and same(parts.tensors, expected.tensors)
    mixed = [11, 1, 9, 3]  # rows of several files in one batch, with leaves in each
    assert [each["number"] for each in one.read_batch(mixed).fields["latent"]] == mixed
    variants = {"conditioning": [1, 0, 1, 0]}
    assert same(
        one.read_batch(mixed, variants=variants).conditionings, other.read_batch(mixed, variants=variants).conditionings
    )
    assert one.has("latent 11") and not one.has("latent 12")


def test_f1_fifty_files_open_and_read(tmp_path, always_grows, monkeypatch):
    path = write_set(tmp_path / "set", [0])
    monkeypatch.setattr(growth, "_file_size", lambda arrays, fields: 0)  # nothing is taken in
    for i in range(1, 51):
        write_set(path, [i], append=True)
    manifest = read_manifest(path)
    assert len(manifest.segments) == 50 and len(list(path.glob("index-*"))) == 51
    cache = open_cache(path, check=True)
    assert [cache.source(i) for i in range(51)] == [f"{i}.png" for i in range(51)]
    assert same(cache[37].realize().latent, latent(37)) and list(verify(path)) == []
    assert_counts_are_right(path)


# Writing


def test_f1_adding_to_a_large_cache_writes_only_what_is_new(tmp_path):
    path = tmp_path / "set"
    with CacheWriter(path) as w:
        for i in range(2000):
            w.add(latent={"samples": bits((1, 2, 2, 2), seed=i)}, caption=f"caption {i}", source=f"{i}.png")
    before, base = stamps(path), read_manifest(path)
    assert base.index_bytes > SMALL_INDEX and not base.segments and base.requires == ()
    for n in range(3):
        with CacheWriter(path, append=True) as w:
            w.add(latent={"samples": bits((1, 2, 2, 2), seed=9000 + n)}, caption="new", source=f"new {n}.png")
        after = read_manifest(path)
        assert after.segments[0].generation == base.generation and after.index_bytes < 8192
        assert stamps(path).items() >= before.items(), "the file of the 2,000 samples was written again"
        assert len(after.segments) == 1, "small files are taken in by the next one"
    cache = open_cache(path, check=True)
    assert len(cache) == 2003 and cache.source(2002) == "new 2.png" and cache.captions(1) == ["caption 1"]
    assert_counts_are_right(path)


def test_files_are_merged_so_that_they_stay_few(tmp_path, always_grows):
    path = write_set(tmp_path / "set", range(4))
    most = 0
    for i in range(4, 44):
        write_set(path, [i], append=True)
        most = max(most, len(read_manifest(path).index_files))
    assert most <= 7 and len(open_cache(path)) == 44
    assert_counts_are_right(path)


def test_a_small_cache_is_written_as_before(tmp_path):
    """Byte for byte, so that older versions open it."""
    path = write_set(tmp_path / "set", range(5))
    write_set(path, [5], append=True)
    manifest = read_manifest(path)
    assert manifest.requires == () and b"segments" not in manifest.to_json() and b"runs" not in manifest.to_json()
    assert b"__metadata__" not in (path / manifest.index_name).read_bytes()[:4096]


def test_publishing_the_same_again_is_the_same_generation(grown):
    before = stamps(grown)
    with CacheWriter(grown, append=True):
        pass
    assert stamps(grown) == before
    with CacheWriter(grown, {"by": "another"}, append=True):
        pass
    assert read_manifest(grown).provenance == {"by": "another"} and len(open_cache(grown, check=True)) == 12


def test_a_new_field_writes_one_file(grown):
    with CacheWriter(grown, append=True) as w:
        w.add(latent=latent(50), depth=bits((2, 2)), source="deep.png")
    cache = open_cache(grown, check=True)
    assert not cache.manifest.segments and len(cache) == 13 and cache.fields[-1] == "depth"
    assert "depth" not in cache[3].fields and same(cache[12].realize().fields["depth"], bits((2, 2)))
    assert_counts_are_right(grown)


class Model:
    """A cache and what should be in it, changed at random."""

    def __init__(self, path: Path, draw: random.Random) -> None:
        self.path, self.draw, self.next = path, draw, 0
        self.samples: list[int] = []

    def step(self) -> str:
        kinds: list[Callable[[], Any]] = [self.append, self.append, self.splice, self.splice, self.replace]
        change = self.draw.choice(kinds if self.samples else [self.append])
        change()
        return change.__name__

    def append(self) -> None:
        new = self._new(self.draw.choice((1, 1, 2, 5)))
        write_set(self.path, new, append=bool(self.samples))
        self.samples += new

    def replace(self) -> None:
        self.samples = self.samples[: self.draw.randrange(len(self.samples))] + self._new(1)
        write_set(self.path, self.samples)

    def splice(self) -> None:
        """Some samples go, some come, in between and at the ends."""
        with CacheWriter(self.path) as w:
            assert w.adopt_sets()
            now: list[int] = []
            for place, number in enumerate(self.samples):
                what = self.draw.random()
                if what < 0.2:
                    now += self._put(w)
                if what < 0.8:
                    w.keep(place, 1)
                    now.append(number)
            now += self._put(w)
            w.name("empty caption", "empty caption")
        self.samples = now

    def _put(self, writer: CacheWriter) -> list[int]:
        new = self._new(1)
        put_sample(writer, new[0])
        return new

    def _new(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))


@pytest.mark.parametrize("seed", range(4))
def test_any_changes_leave_the_right_samples_and_counts(tmp_path, always_grows, seed):
    model = Model(tmp_path / "set", random.Random(seed))
    for n in range(14):
        what = model.step()
        cache = open_cache(model.path, check=True)
        assert [cache.source(i) for i in range(len(cache))] == [f"{i}.png" for i in model.samples], (n, what)
        assert_counts_are_right(model.path)
    assert content(model.path) == content(write_set(tmp_path / "whole", model.samples))
    assert list(verify(model.path)) == []


def test_most_rows_out_of_use_write_one_file(tmp_path, always_grows):
    path = write_set(tmp_path / "set", range(9))
    with CacheWriter(path) as w:
        w.adopt_sets()
        w.keep(0, 6)
    assert read_manifest(path).runs == ((0, 6),) and read_manifest(path).counts["unused"] == 10
    with CacheWriter(path) as w:
        w.adopt_sets()
        w.keep(1, 3)
    assert not read_manifest(path).runs and [s.source for s in open_cache(path)] == ["1.png", "2.png", "3.png"]
    assert_counts_are_right(path)


def test_too_many_runs_write_one_file(tmp_path, always_grows, monkeypatch):
    monkeypatch.setattr(growth, "MOST_RUNS", 4)
    path = write_set(tmp_path / "set", range(16))
    for skipped, runs in ((2, 2), (5, 3), (7, 4), (10, 0)):
        with CacheWriter(path) as w:
            w.adopt_sets()
            w.keep(0, skipped)
            w.keep(skipped + 1, len(open_cache(path)) - skipped - 1)
        assert len(read_manifest(path).runs) == runs
        assert_counts_are_right(path)


def test_a_sample_that_is_listed_twice_writes_one_file(tmp_path, always_grows):
    path = write_set(tmp_path / "set", range(6))
    with CacheWriter(path) as w:
        w.adopt_sets()
        w.keep(0, 6)
        w.keep(2, 1)
    assert not read_manifest(path).runs
    assert [s.source for s in open_cache(path)] == [f"{i}.png" for i in (*range(6), 2)] and not list(verify(path))
    assert_counts_are_right(path)


# What looks after a cache


def clean_all(path: Path) -> None:
    clean(path, ["superseded", "unused"])


@pytest.mark.parametrize("look_after", [compact, clean_all, overview, preview_clean])
def test_upkeep_knows_files_that_belong_together(grown, look_after):
    before = content(grown)
    look_after(grown)
    assert content(grown) == before and list(verify(grown)) == []


def test_compacting_leaves_one_file(grown):
    before = content(grown)
    compact(grown)
    assert not read_manifest(grown).segments and len(stamps(grown)) == 1 and content(grown) == before
    assert_counts_are_right(grown)


def test_a_copy_has_one_file(grown, tmp_path):
    duplicate(grown, tmp_path / "copy")
    manifest = read_manifest(tmp_path / "copy")
    assert not manifest.segments and not manifest.requires and content(tmp_path / "copy") == content(grown)


def test_repair_drops_what_is_damaged_in_any_file(grown):
    flip(shard_holding(grown, "latent 9"), -1 + shard_holding(grown, "latent 9").stat().st_size)
    damaged = [problem.sample for problem in verify(grown) if problem.drops]
    repair(grown, accept_loss=True)
    left = [i for i in range(12) if i not in damaged]
    assert [s.source for s in open_cache(grown, check=True)] == [f"{i}.png" for i in left] and damaged
    assert list(verify(grown)) == []


def test_files_of_a_generation_that_is_read_stay(grown, always_grows):
    """Also those that it continues, when the published one continues others."""
    manifest = read_manifest(grown)
    lease = Lease(open_cache(grown)._files._storage, manifest.generation)
    write_set(grown, range(3))  # written as one file
    assert set(manifest.index_names) <= set(stamps(grown))
    assert all((grown / "shards" / shard.file).exists() for shard in manifest.shards)
    lease.release()
    write_set(grown, range(4))
    assert not set(manifest.index_names) & set(stamps(grown))


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "swapped"])
def test_a_damaged_file_among_several_is_named(grown, damage):
    first, *_, last = read_manifest(grown).index_names
    if damage == "missing":
        (grown / first).unlink()
    elif damage == "truncated":
        (grown / first).write_bytes((grown / first).read_bytes()[:-8])
    elif damage == "flipped":
        flip(grown / first, 900)
    else:
        (grown / first).rename(grown / "aside")
        (grown / last).rename(grown / first)
        (grown / "aside").rename(grown / last)
    (problem,) = [problem for problem in verify(grown) if "index-" in problem.place]
    assert first in problem.place and problem.kind == ("missing" if damage == "missing" else "damaged")
    for use in (open_cache, CacheWriter, lambda path: CacheWriter(path, append=True), compact):
        with pytest.raises(CacheError, match="index"):
            use(grown)


def test_damage_is_not_written_again(grown, monkeypatch):
    """A file that stays is not read as a whole; one that is taken in is."""
    from streamcache.dataset_cache.index import joined

    monkeypatch.setattr(joined, "_CHECKED_INDEX_BYTES", 0)
    first = grown / read_manifest(grown).index_names[0]
    flip(first, first.stat().st_size - 1)
    with pytest.raises(CacheError, match="does not match its hash"):
        CacheWriter(grown)
    before = read_manifest(grown)
    monkeypatch.setattr(growth, "_file_size", lambda arrays, fields: 0)  # nothing is taken in
    with CacheWriter(grown, append=True) as w:
        put_sample(w, 60)
    assert read_manifest(grown).segments[0] == before.segments[0]
    with (
        pytest.raises(CacheError, match="does not match its hash"),
        CacheWriter(grown, append=True) as w,
    ):
        w.add(extra=bits((2,)))  # a new field: the index is written as one file


def test_an_entry_of_another_file_is_shared(grown):
    with CacheWriter(grown, append=True) as w:
        w.sample({"latent": ["latent 2"], "conditioning": [SHARED]}, SampleFacts([SHARED], "again.png"))
    cache = open_cache(grown, check=True)
    assert cache.keys(12)["latent"] == [digest_key("latent 2")] and same(
        cache.read_batch([12]).latents, latent(2)["samples"]
    )
    assert same(cache[12].realize().conditioning, conditioning(SHARED))
    assert_counts_are_right(grown)
