"""Which ranges are joined in one request, and several requests at once."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from streamcache.dataset_cache.remote import ranges
from streamcache.dataset_cache.remote.ranges import GAP_BYTES, IN_FLIGHT, REQUEST_BYTES, at_once, plan_requests


def test_near_ranges_are_one_request_and_far_ones_are_not():
    near = plan_requests([(0, 10), (10, 5), (15 + GAP_BYTES, 5)])
    assert [(one.offset, one.size) for one in near] == [(0, 20 + GAP_BYTES)]
    far = plan_requests([(16 + GAP_BYTES, 5), (0, 15)])
    assert [(one.offset, one.size) for one in far] == [(0, 15), (16 + GAP_BYTES, 5)]
    assert plan_requests([]) == plan_requests([(5, 0)]) == []


def test_no_request_is_larger_than_the_limit():
    plan = plan_requests([(7, 3 * REQUEST_BYTES + 1), (7 + 3 * REQUEST_BYTES, 100)])
    assert max(one.size for one in plan) <= REQUEST_BYTES and len(plan) == 4


@pytest.mark.parametrize("seed", range(20))
def test_the_pieces_of_all_requests_are_the_ranges(seed, monkeypatch):
    monkeypatch.setattr("streamcache.dataset_cache.remote.ranges.REQUEST_BYTES", 100)
    monkeypatch.setattr("streamcache.dataset_cache.remote.ranges.GAP_BYTES", 10)
    draw = random.Random(seed)
    content = draw.randbytes(5000)
    ranges = [(start := draw.randrange(4000), draw.choice([0, 1, 30, 99, 100, 101, 350])) for _ in range(30)]
    result = [bytearray(size) for _, size in ranges]
    for one in plan_requests(ranges):
        assert one.size <= 100
        data = content[one.offset : one.offset + one.size]
        for number, start, at, size in one.pieces:
            result[number][start : start + size] = data[at : at + size]
    assert [bytes(part) for part in result] == [content[start : start + size] for start, size in ranges]


def test_calls_run_at_once_and_the_first_error_ends_them():
    gate, done = threading.Barrier(3, timeout=20), []
    at_once([gate.wait, gate.wait, gate.wait])
    release = threading.Event()

    def fail() -> None:
        raise KeyError("first")

    with pytest.raises(KeyError):
        at_once([fail, *[lambda: release.wait(20)] * (IN_FLIGHT - 1), *[lambda: done.append(1)] * 50])
    release.set()
    at_once([])
    assert len(done) < 50


def test_calls_that_make_such_calls_themselves_do_not_wait_for_each_other(monkeypatch):
    pool = ThreadPoolExecutor(2)  # fewer threads than calls: each of them is waiting for another call
    monkeypatch.setitem(ranges._pools, os.getpid(), pool)
    done: list[int] = []

    def outer() -> None:
        at_once([lambda: done.append(1)] * 3)

    thread = threading.Thread(target=at_once, args=([outer] * 20,), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive() and len(done) == 60
    pool.shutdown()
