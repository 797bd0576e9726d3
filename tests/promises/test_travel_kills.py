"""push and pull under kill -9: run again, they end in an equal cache, and readers always open a whole generation."""

import random
import shutil
import threading
from pathlib import Path

import pytest

from streamcache.dataset_cache import clean, verify
from streamcache.dataset_cache.travel import pull, push

from ..support.datasets import content, write_set
from ..support.processes import Nursery, needs_fork, travel_until

pytestmark = needs_fork
MOMENTS = 110  # calls that change something, in a whole journey of these caches


class Readers:
    """A thread that opens and reads a cache over and over, and notes what it finds."""

    def __init__(self, path: Path) -> None:
        self.found: list[int] = []
        self.errors: list[Exception] = []
        self._stop, self._path = threading.Event(), path
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        while not self._stop.is_set():
            try:
                self.found.append(len(content(self._path)))
            except Exception as error:
                self.errors.append(error)

    def __enter__(self) -> "Readers":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def journeys(tmp_path: Path, what: str, moments: list[int]) -> int:
    """Kill a push or pull in its change number `moment`; how many were killed."""
    killed = 0
    old, new = write_set(tmp_path / "old", range(3)), tmp_path / "new"
    pull(old, new)
    new_content = content(write_set(new, range(6)))
    with Nursery(tmp_path) as nursery:
        for last in moments:
            near, far = tmp_path / "near", tmp_path / "far"
            pull(old, far)
            pull(far, near)  # both know their last common generation
            source, target = (near, far) if what == "push" else (far, near)
            write_set(source, range(6))
            with Readers(target) as readers:
                notes = nursery.start(travel_until, what, source, target, last).wait()
            killed += not notes
            assert readers.errors == [] and set(readers.found) <= {3, 6}
            again = (push if what == "push" else pull)(source, target)
            assert content(target) == content(source) == new_content, (last, notes, str(again))
            clean(target, ["debris"])
            assert list(verify(target)) == []
            for each in (near, far):
                shutil.rmtree(each)
    return killed


def moments(count: int) -> list[int]:
    return random.Random(5).choices(range(1, MOMENTS), k=count)


@pytest.mark.parametrize("what", ["push", "pull"])
def test_f6_a_killed_journey_goes_on_and_ends_in_an_equal_cache(tmp_path: Path, what: str):
    assert journeys(tmp_path, what, [3, 20, 40, 50, 60]) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("what", ["push", "pull"])
def test_f6_a_hundred_killed_journeys_end_in_equal_caches(tmp_path: Path, what: str, part: int):
    assert journeys(tmp_path, what, moments(100)[part::4]) > 10
