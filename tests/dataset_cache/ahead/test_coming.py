"""What comes: every use in order, with its next use, in a window that moves and stays small."""

import random
import tracemalloc
from itertools import count, islice

import numpy as np
import pytest

from streamcache.dataset_cache.ahead import coming
from streamcache.dataset_cache.ahead.coming import EMPTY, FAR, FIRST_BATCHES, Coming, Window


def epochs(pieces: int, size: int, seed: int = 0, number: int | None = None):
    draw = random.Random(seed)
    for _ in count() if number is None else range(number):
        order = draw.sample(range(pieces), pieces)
        for at in range(0, pieces, size):
            yield [(piece * 64, 10 + piece) for piece in order[at : at + size]]


def uses_of(batches) -> list[int]:
    return [location for batch in batches for location, _ in batch]


def next_uses(order: list[int]) -> list[int]:
    return [next((n for n in range(at + 1, len(order)) if order[n] == one), FAR) for at, one in enumerate(order)]


def reach(batches, position: int = 0, keep: int = 0) -> Window:
    made, window = Coming(batches), EMPTY
    while made.is_short(window, position):
        window = made.extend(window, keep)
    return window


def test_f5_every_use_has_its_next_one() -> None:
    window = reach(epochs(50, 4, number=3))
    order = uses_of(epochs(50, 4, number=3))
    assert window.locations(0, window.end) == order
    assert window.following.tolist() == next_uses(order)
    assert [window.use(n) for n in (0, 7)] == [(order[n], 10 + order[n] // 64, window.following[n]) for n in (0, 7)]


def test_f5_the_window_reaches_far_enough_to_know_when_every_piece_is_needed_again() -> None:
    window = reach(epochs(1000, 4))
    assert set(window.locations(0, window.end)) == {64 * n for n in range(1000)}
    assert set(window.locations(1000, window.end)) == {64 * n for n in range(1000)}
    assert window.end < 6 * 1000


def test_f5_batches_and_bytes_are_found_by_their_numbers() -> None:
    batches = list(islice(epochs(10, 3), 40))
    window = reach(iter(batches))
    at = 0
    for number, batch in enumerate(batches):
        assert window.batch_range(number) == (at, at + len(batch))
        assert window.bytes_between(at, at + len(batch)) == sum(size for _, size in batch)
        at += len(batch)
    assert window.batch_range(len(batches)) is None
    assert window.largest_batch() == max(sum(size for _, size in batch) for batch in batches)


def test_f5_a_window_that_moves_forgets_what_was_read_and_keeps_its_numbers() -> None:
    made, window, order = Coming(epochs(100, 4)), EMPTY, uses_of(islice(epochs(100, 4), 3000))
    expected = next_uses(order[:4000])
    for batch in range(0, 500, 3):
        span = window.batch_range(batch)
        position = span[0] if span else 0
        while made.is_short(window, position + 50):
            window = made.extend(window, batch)
        assert window.locations(position, position + 50) == order[position : position + 50]
        known = [window.use(n)[2] for n in range(position, position + 50)]
        assert known == expected[position : position + 50]
    assert len(window.where) < 2000 and window.first > 800


def test_f5_the_next_use_of_any_piece_is_found() -> None:
    window, order = reach(epochs(30, 4, number=2)), uses_of(epochs(30, 4, number=2))
    wanted = np.array([64 * n for n in range(31)], "<u8")  # the last one never occurs
    for position in (0, 13, 45, len(order)):
        expected = [next((n for n in range(position, len(order)) if order[n] == one), FAR) for one in wanted]
        assert window.next_uses(wanted, position).tolist() == expected
        assert [window.next_use(int(one), position) for one in wanted] == expected


def test_f5_an_order_that_ends_is_not_asked_for_more() -> None:
    made = Coming(iter([[(0, 1)], [(64, 1)]]))
    window = made.extend(EMPTY, 0)
    assert not made.is_short(window, 0) and window.following.tolist() == [FAR, FAR]
    empty = Coming(iter([]))
    assert not empty.is_short(empty.extend(EMPTY, 0), 0)


def test_f5_the_first_batches_are_known_at_once_and_an_end_is_obeyed() -> None:
    taken = []
    made = Coming(taken.append(n) or [(64 * n, 1)] for n in count())
    window = made.extend(EMPTY, 0)
    assert len(taken) == FIRST_BATCHES
    made.end()
    assert not made.is_short(window, 0)


def test_f5_the_window_is_bounded_and_flat_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coming, "MOST_USES", 50_000)
    monkeypatch.setattr(coming, "_PAUSE_SECONDS", 0)
    tracemalloc.start()
    window = reach([(64 * (4 * n + k), 1) for k in range(4)] for n in count())  # never the same piece again
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 50_000 <= len(window.where) <= 100_000
    assert kept < 48 * len(window.where) + 1_000_000
