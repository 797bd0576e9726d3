"""After a kill at any moment the published data is readable, flushed entries are reused, and only the tail is lost."""

import random
import shutil
import time
from pathlib import Path

import pytest
import safetensors

from streamcache.dataset_cache import CacheError, CacheWriter, open_cache
from streamcache.dataset_cache.format import segment
from streamcache.dataset_cache.format.manifest import read_manifest
from streamcache.dataset_cache.processes import this_host
from streamcache.dataset_cache.read.leases import holders

from ..support.processes import Child, Nursery, build, build_until, needs_fork
from ..support.samples import assert_holds, put_sample, shard_files, write_cache

pytestmark = needs_fork


class Crashes:
    """A dataset whose writers are killed one after the other, and what must hold after each kill."""

    def __init__(self, path: Path, nursery: Nursery, seed: int) -> None:
        self.path, self._nursery, self._draw = path, nursery, random.Random(seed)
        self.published = self.durable = 0  # how many samples at least
        self.put = 0  # how many at most
        self.kills: dict[str, int] = {}

    def kill_one(self, total: int, flush_every: int, publish_every: int, longest: float) -> None:
        """Let a writer go on for a random time, kill it, and look at what it left."""
        reader = open_cache(self.path) if (self.path / "dataset.json").exists() else None
        before = len(reader) if reader else 0
        child = self._nursery.start(build, self.path, total, flush_every, publish_every)
        child.wait_for("open")
        time.sleep(self._draw.random() ** 2 * longest)
        self.check(child.kill())
        if reader is not None:
            assert_holds(reader, range(before))

    def check(self, notes: list[list]) -> None:
        self._learn(notes)
        self._check_published()
        self._check_durable()

    def _learn(self, notes: list[list]) -> None:
        for what, *numbers in notes:
            if what == "published":
                self.published = self.durable = numbers[0] + 1
            elif what == "durable":
                self.durable = numbers[0] + 1
            elif what == "put":
                self.put = max(self.put, numbers[0] + 1)
        last = notes[-1][0] if notes else "start"
        self.kills[last] = self.kills.get(last, 0) + 1

    def _check_published(self) -> None:
        if self.published or (self.path / "dataset.json").exists():
            cache = open_cache(self.path, check=True)
            assert len(cache) >= self.published
            assert_holds(cache, range(len(cache)))
        else:
            with pytest.raises(CacheError, match="entries.*of its build are ready|never finished"):
                open_cache(self.path)

    def _check_durable(self) -> None:
        writer = CacheWriter(self.path, append=True)
        try:
            found = [writer.has(f"latent {i}") and writer.has(f"text {i}") for i in range(self.put + 5)]
        finally:
            writer.close()
        assert all(found[: self.durable]), f"sample {found.index(False)} of {self.durable} durable ones is lost"
        assert not any(found[self.put + 1 :]), "nothing comes from nowhere"  # one may not have been noted any more

    def finish(self, total: int) -> None:
        """Whatever is missing is written now; afterwards nothing tells of the kills."""
        made = []
        with CacheWriter(self.path) as w:
            for i in range(total):
                if not w.has(f"latent {i}"):
                    made.append(i)
                put_sample(w, i)
        assert all(i >= self.durable for i in made), "what was durable is not made again"
        cache = open_cache(self.path, check=True)
        assert_holds(cache, range(total))
        assert not (self.path / segment.BUILD).exists()
        assert {file.name for file in shard_files(self.path)} == {
            listed.file for listed in read_manifest(self.path).shards
        }
        for file in shard_files(self.path):
            with safetensors.safe_open(file, "np") as opened:
                assert opened.keys()


def read_or_none(path: Path) -> range | None:
    manifest = read_manifest(path)
    return None if manifest is None else range(manifest.counts["samples"])


def crash(path: Path, nursery: Nursery, seed: int, kills: int, flush_every: int, publish_every: int) -> Crashes:
    crashes = Crashes(path, nursery, seed)
    for n in range(kills):
        crashes.kill_one(10_000, flush_every, publish_every, 0.12)
        if n % 10 == 9:  # not only ever larger datasets
            total = max(crashes.durable, len(read_or_none(path) or ()))
            crashes.finish(total + 2)
            shutil.rmtree(path)
            crashes.published = crashes.durable = crashes.put = 0
    total = max(crashes.durable, len(read_or_none(path) or ())) + 2
    crashes.finish(total)
    return crashes


def test_a13_kills_between_intervals_lose_only_the_tail(tmp_path, nursery):
    crash(tmp_path / "set", nursery, seed=1, kills=6, flush_every=3, publish_every=0)


def test_a13_kills_while_publishing_leave_a_dataset_that_opens(tmp_path, nursery):
    crash(tmp_path / "set", nursery, seed=2, kills=6, flush_every=0, publish_every=1)


def test_a13_kills_of_writers_that_flush_and_publish(tmp_path, nursery):
    crash(tmp_path / "set", nursery, seed=3, kills=5, flush_every=2, publish_every=5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flush_every, publish_every", [(3, 0), (0, 1), (2, 7)], ids=["intervals", "publishing", "both"]
)
def test_a13_kills_at_fifty_random_moments(tmp_path, nursery, flush_every, publish_every):
    crashes = crash(tmp_path / "set", nursery, 50, kills=50, flush_every=flush_every, publish_every=publish_every)
    assert sum(crashes.kills.values()) == 50 and len(crashes.kills) > 1, crashes.kills


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["every ninth", "every"])
def test_a13_a_kill_in_every_call_that_changes_a_file(tmp_path, nursery, thorough, part):
    """A writer that flushes, publishes, merges small shards and removes old ones is killed in each of its steps."""
    begun = tmp_path / "begun"
    for i in range(4):
        with CacheWriter(begun, append=True) as w:
            put_sample(w, i)
    survived = False
    for step in range(part, 1000, 4 if thorough else 36):
        path = tmp_path / f"set {step}"
        shutil.copytree(begun, path)
        crashes = Crashes(path, nursery, step)
        crashes.published = 4
        notes = nursery.start(build_until, path, 8, 1, 2, step).wait()
        survived = bool(notes) and notes[-1][0] == "done"
        if survived:
            break
        crashes.put = 4
        crashes.check(notes)
        crashes.finish(10)
        shutil.rmtree(path)
    assert survived, "there are fewer than 1,000 steps"
    assert step > 40


def test_a_killed_save_leaves_the_old_generation_readable(tmp_path, nursery):
    path = write_cache(tmp_path / "set", 5)
    reader = open_cache(path)
    child = nursery.start(build, path, 10_000, 1, 0)
    child.wait_for("durable")
    child.kill()
    assert_holds(open_cache(path), range(5))
    assert_holds(reader, range(5))
    with CacheWriter(path) as w:  # a new list of samples: the old ones go
        assert w.recovered_entries >= 2
        put_sample(w, 5)
    assert_holds(open_cache(path, check=True), [5])


def test_opening_an_unpublished_cache_reports_how_much_is_ready(tmp_path, nursery):
    child: Child = nursery.start(build, tmp_path / "set", 10_000, 1, 0)
    child.wait_for("durable")
    notes = child.kill()
    durable = sum(note[0] == "durable" for note in notes)
    with pytest.raises(
        CacheError, match=r"never published; [\d,]+ entries \([\d.]+ \w+\).*run the same save again"
    ) as error:
        open_cache(tmp_path / "set")
    ready = int(str(error.value).split("published; ")[1].split(" ")[0].replace(",", ""))
    assert 2 * durable <= ready <= 2 * durable + 2


def test_the_lease_of_a_killed_reader_ends_at_once(tmp_path, nursery):
    path = write_cache(tmp_path / "set", 2)
    child = nursery.start(build, path, 2, 0, 0)
    child.wait()
    (path / ".leases").mkdir(exist_ok=True)
    generation = read_manifest(path).generation
    (path / ".leases" / f"{generation}.{this_host()}.{child.pid}.00000000").touch()
    (path / ".leases" / f"{generation}.elsewhere.{child.pid}.00000000").touch()
    assert [holder.host for holder in holders(path)] == ["elsewhere"], "its process is gone, however young the file"
