"""Retention: what is needed last goes first, and nothing that a plan still needs."""

import numpy as np

from streamcache.dataset_cache.ahead.coming import EMPTY, FAR, Coming
from streamcache.dataset_cache.ahead.retention import Retention


def filled(**uses: int) -> Retention:
    kept = Retention(100)
    for name, following in uses.items():
        kept.add(ord(name), 10, following=following)
    return kept


def popped(kept: Retention, read: int = 0) -> list[str]:
    found = []
    while (location := kept.pop_idle(read)) is not None:
        found.append(chr(location))
    return found


def test_f5_the_piece_that_is_needed_last_goes_first() -> None:
    assert popped(filled(a=5, b=90, c=FAR, d=7)) == ["c", "b", "d", "a"]


def test_f5_a_piece_with_a_planned_use_stays_until_that_is_read() -> None:
    kept = filled(a=5, b=90)
    kept.plan(ord("b"), 90, 200)
    assert popped(kept, 50) == ["a"]
    assert kept.release([ord("b")], 90) == []  # position 90 is not read yet
    assert kept.release([ord("b")], 91) == [ord("b")]
    assert popped(kept, 91) == ["b"]


def test_f5_a_planned_piece_stays_also_if_nothing_is_known_of_it_after_that() -> None:
    kept = filled(a=FAR)
    kept.plan(ord("a"), 5, FAR)
    assert popped(kept, 5) == []
    kept.release([ord("a")], 6)
    assert popped(kept, 6) == ["a"]


def test_f5_sizes_are_counted_and_a_larger_piece_takes_the_place_of_a_smaller() -> None:
    kept = filled(a=5, b=6)
    assert kept.used == 20 and kept.fits(80) and not kept.fits(81)
    kept.add(ord("a"), 50)
    assert kept.used == 60 and kept.has(ord("a"), 50) and not kept.has(ord("a"), 51) and kept.size(ord("c")) is None
    kept.discard(ord("a"))
    kept.discard(ord("a"))
    assert kept.used == 10 and kept.pieces() == [(ord("b"), 10)] and len(kept) == 1


def test_f5_what_was_put_back_goes_later() -> None:
    kept = filled(a=5, b=90)
    kept.put_back(kept.pop_idle(0) or 0)
    assert popped(kept) == ["b", "a"]


def test_f5_a_longer_window_tells_more() -> None:
    kept = filled(a=FAR, b=FAR, c=FAR)
    window = Coming(iter([[(ord(name), 10)] for name in "abcab"])).extend(EMPTY, 0)
    kept.foresee(window, 1, 0)
    assert [kept.next_use(ord(name)) for name in "abc"] == [3, 1, 2]
    assert popped(kept) == ["a", "c", "b"]
    kept.plan(ord("a"), 3, FAR)
    kept.foresee(window, 4, 0)
    assert kept.planned(0) == [ord("a")] and "a" not in popped(kept)
    kept.forget_plan()
    assert kept.planned(0) == [] and sorted(popped(kept)) == ["a", "b", "c"]


def test_f5_no_choice_depends_on_numbers_that_numpy_made() -> None:
    kept = filled(a=int(np.int64(5)))
    assert type(kept.pop_idle(0)) is int
