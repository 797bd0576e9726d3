"""The fetcher: the most urgent first, neighbors together, several in flight, errors to their pieces."""

import threading
import time
from collections.abc import Callable

import pytest

from streamcache.dataset_cache.ahead import fetcher as fetcher_module
from streamcache.dataset_cache.ahead.fetcher import STREAMS, URGENT, Fetcher, split

SIZE = 640
FAR = fetcher_module.GAP_BYTES + 100 * SIZE  # not joined with what is before


class Line:
    """Records requests; `gate` lets them pass."""

    def __init__(self, fails: Callable[[int], bool] = lambda location: False) -> None:
        self.asked: list[tuple[int, int]] = []
        self.came: dict[int, int] = {}
        self.failed: list[list[int]] = []
        self.gate, self.fails = threading.Event(), fails
        self.most = self.flying = 0
        self.changed = threading.Condition()
        self.fetcher = Fetcher(self.fetch, self.deliver, lambda: None, self.changed)

    def fetch(self, location: int, size: int) -> bytes:
        with self.changed:
            self.asked.append((location, size))
            self.flying += 1
            self.most = max(self.most, self.flying)
        self.gate.wait(60)
        with self.changed:
            self.flying -= 1
        if any(self.fails(at) for at in range(location, location + size, SIZE)):
            raise OSError("no")
        return bytes(size)

    def deliver(self, pieces, found) -> None:
        with self.changed:
            if isinstance(found, Exception):
                self.failed.append([location for location, _ in pieces])
            else:
                self.came.update((location, len(data)) for (location, _), data in zip(pieces, split(pieces, found)))

    def add(self, *locations: int, priority: int = 0) -> None:
        with self.changed:
            for location in locations:
                self.fetcher.add(location, SIZE, priority)

    def settle(self) -> None:
        self.gate.set()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with self.changed:
                if not self.fetcher._queued and not self.fetcher._flying:
                    return
            time.sleep(0.001)
        raise AssertionError("hangs")


def test_f5_neighbors_come_in_one_request_and_others_in_their_own() -> None:
    line = Line()
    line.add(SIZE * 2, SIZE, FAR, SIZE * 3)
    line.settle()
    assert sorted(line.asked) == [(SIZE, 3 * SIZE), (FAR, SIZE)]
    assert line.came == {**{SIZE * n: SIZE for n in (1, 2, 3)}, FAR: SIZE}


def test_f5_a_small_gap_is_fetched_with_the_pieces_around_it() -> None:
    line = Line()
    line.add(0, 5 * SIZE, 2 * SIZE + fetcher_module.GAP_BYTES * 2)
    line.settle()
    assert sorted(line.asked) == [(0, 6 * SIZE), (2 * SIZE + fetcher_module.GAP_BYTES * 2, SIZE)]
    assert sorted(line.came.values()) == [SIZE] * 3


def test_f5_what_is_needed_next_does_not_wait_for_its_neighbors(monkeypatch) -> None:
    monkeypatch.setattr(fetcher_module, "STREAMS", 1)
    monkeypatch.setattr(fetcher_module, "NEAR_BYTES", SIZE)
    line = Line()
    line.fetcher.near = 2
    line.add(FAR)
    while not line.asked:
        time.sleep(0.001)
    for n in range(5):
        line.add(SIZE * n, priority=n)
    line.settle()
    assert line.asked[1:] == [(0, SIZE), (SIZE, SIZE), (2 * SIZE, 3 * SIZE)]


def test_f5_padding_between_neighbors_is_fetched_with_them(monkeypatch) -> None:
    line = Line()
    with line.changed:
        line.fetcher.add(0, 100, 0)
        line.fetcher.add(128, 50, 0)
    line.settle()
    assert line.asked == [(0, 178)] and line.came == {0: 100, 128: 50}


def test_f5_requests_stay_small(monkeypatch) -> None:
    monkeypatch.setattr(fetcher_module, "REQUEST_BYTES", 4 * SIZE)
    line = Line()
    line.add(*(SIZE * n for n in range(20)))
    line.settle()
    assert sum(size for _, size in line.asked) == 20 * SIZE and max(size for _, size in line.asked) <= 4 * SIZE


def test_f5_the_urgent_come_before_what_is_planned(monkeypatch) -> None:
    monkeypatch.setattr(fetcher_module, "STREAMS", 1)
    line = Line()
    line.add(0)
    while not line.asked:
        time.sleep(0.001)
    for n in (5, 3, 7):
        line.add(n * FAR, priority=n)
    line.add(7 * FAR, priority=URGENT)
    line.settle()
    assert [location // FAR for location, _ in line.asked] == [0, 7, 3, 5]


def test_f5_several_requests_are_in_flight_and_no_more_than_that() -> None:
    line = Line()
    line.add(*(FAR * n for n in range(3 * STREAMS)))
    end = time.monotonic() + 60
    while line.flying < STREAMS and time.monotonic() < end:
        time.sleep(0.001)
    line.settle()
    assert line.most == STREAMS and len(line.came) == 3 * STREAMS


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_f5_a_thread_that_breaks_is_replaced(monkeypatch) -> None:
    line = Line()
    line.gate.set()

    def out_of_memory(pieces, found):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(line.fetcher, "_deliver", out_of_memory)
        for n in range(2 * STREAMS):
            line.add(FAR * n)
            line.settle()
    line.add(0)
    line.settle()
    assert list(line.came) == [0]


def test_f5_a_piece_is_requested_once() -> None:
    line = Line()
    for _ in range(5):
        line.add(0)
    while not line.asked:
        time.sleep(0.001)
    line.add(0)
    line.settle()
    assert line.asked == [(0, SIZE)]


def test_f5_an_error_of_several_is_that_of_one_when_they_are_asked_for_again() -> None:
    line = Line(fails=lambda location: location == SIZE * 2)
    pieces = [SIZE * n for n in range(5)]
    line.add(*pieces)
    line.settle()
    assert line.failed == [pieces]
    line.add(*pieces)
    line.settle()
    assert line.failed == [pieces, [SIZE * 2]] and set(line.came) == set(pieces) - {SIZE * 2}


def test_f5_what_is_cancelled_is_not_requested(monkeypatch) -> None:
    monkeypatch.setattr(fetcher_module, "STREAMS", 1)
    line = Line()
    line.add(*(FAR * n for n in range(5)))
    while not line.asked:
        time.sleep(0.001)
    with line.changed:
        assert len(line.fetcher.cancel()) == 4
        assert line.fetcher.is_pending(line.asked[0][0])
    line.settle()
    assert len(line.asked) == 1


def test_f5_threads_end_without_work_and_start_again(monkeypatch) -> None:
    monkeypatch.setattr(fetcher_module, "_IDLE_SECONDS", 0.01)
    line = Line()
    for n in range(3):
        line.add(FAR * n)
        line.settle()
        end = time.monotonic() + 60
        while line.fetcher._threads and time.monotonic() < end:
            time.sleep(0.001)
        assert not line.fetcher._threads and len(line.came) == n + 1


@pytest.mark.parametrize("busy", [False, True])
def test_f5_a_closed_fetcher_takes_nothing(busy) -> None:
    line = Line()
    if busy:
        line.add(0)
    with line.changed:
        line.fetcher.close()
        line.fetcher.add(FAR, SIZE, 0)
    line.settle()
    assert (FAR, SIZE) not in line.asked
