"""Choices of widgets are there at once, and soon as they are on disk."""

import threading
import time

import pytest

from streamcache.nodes.library import listing
from streamcache.nodes.library.listing import Listing


@pytest.fixture(autouse=True)
def no_waiting_for_age(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listing, "FRESH_SECONDS", 0.0)


def test_a_quick_search_is_waited_for():
    found = ["a"]
    names = Listing(lambda: list(found))
    assert names.names() == ["a"]
    found.append("b")
    assert names.names() == ["a", "b"]


def test_a_slow_search_is_not_waited_for_and_runs_once():
    started, go_on = [], threading.Event()

    def search() -> list[str]:
        started.append(1)
        go_on.wait(60)
        return ["late"]

    names = Listing(search)
    before = time.monotonic()
    assert names.names() == [] and names.names() == []
    assert time.monotonic() - before < 30
    assert len(started) == 1
    go_on.set()
    for _ in range(200):
        if names.names() == ["late"]:
            break
        time.sleep(0.05)
    assert names.names() == ["late"]


def test_a_recent_answer_is_given_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listing, "FRESH_SECONDS", 1000.0)
    calls = []
    names = Listing(lambda: calls.append(1) or ["a"])
    assert [names.names() for _ in range(5)] == [["a"]] * 5
    assert len(calls) == 1


def test_a_failed_search_leaves_what_was_known(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    answers = iter([["a"]])
    names = Listing(lambda: next(answers))
    assert names.names() == ["a"]
    assert names.names() == ["a"]
