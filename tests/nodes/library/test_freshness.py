"""A node runs again if, and only if, its result is not as it left it."""

import shutil
import threading
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheError
from streamcache.nodes.library.freshness import record_result, result_fingerprint
from streamcache.nodes.library.handles import handle_of

from ...support.samples import write_cache


def test_a_node_does_not_run_again_because_of_its_own_result(tmp_path: Path):
    path = tmp_path / "set"
    before = result_fingerprint(path, "5")
    write_cache(path, 3)
    record_result(path, "5", handle_of("set", path).generation)
    assert result_fingerprint(path, "5") == before


def test_it_runs_again_when_something_else_changed_the_cache(tmp_path: Path):
    path = write_cache(tmp_path / "set", 3)
    record_result(path, "5", handle_of("set", path).generation)
    before = result_fingerprint(path, "5")
    write_cache(path, 2)
    changed = result_fingerprint(path, "5")
    shutil.rmtree(path)
    gone = result_fingerprint(path, "5")
    assert len({before, changed, gone}) == 3
    assert result_fingerprint(path, "5") == gone


def test_it_runs_again_after_it_made_another_result_for_another_workflow(tmp_path: Path):
    path = tmp_path / "set"
    first = result_fingerprint(path, "5 of one workflow")
    record_result(path, "5 of one workflow", handle_of("set", write_cache(path, 3)).generation)
    other = result_fingerprint(path, "5 of another")
    record_result(path, "5 of another", handle_of("set", write_cache(path, 2)).generation)
    assert result_fingerprint(path, "5 of another") == other
    assert result_fingerprint(path, "5 of one workflow") not in (first, other)


def test_it_runs_again_when_its_handle_is_superseded(tmp_path: Path):
    path = write_cache(tmp_path / "set", 3)
    old = handle_of("set", path)
    write_cache(path, 2)
    record_result(path, "5", handle_of("set", path).generation)
    before = result_fingerprint(path, "5")
    with pytest.raises(CacheError):
        old.open()
    assert result_fingerprint(path, "5") != before


def test_a_slow_disk_blocks_no_other_node(tmp_path: Path):
    looking, answer = threading.Event(), threading.Event()

    def slow() -> str:
        looking.set()
        assert answer.wait(60)
        return "state"

    numbers: list[int] = []
    thread = threading.Thread(
        target=lambda: numbers.append(result_fingerprint(tmp_path / "slow", "1", slow)), daemon=True
    )
    thread.start()
    assert looking.wait(60)
    other = result_fingerprint(tmp_path / "fast", "2", lambda: "state")
    record_result(tmp_path / "fast", "2", "state")
    answer.set()
    thread.join(60)
    assert numbers and numbers[0] != other
    assert result_fingerprint(tmp_path / "slow", "1", slow) == numbers[0]


def test_a_result_that_is_recorded_during_a_look_counts(tmp_path: Path):
    path = tmp_path / "set"
    states = ["before"]
    first = result_fingerprint(path, "1", lambda: states[-1])

    def look_while_the_node_ends() -> str:
        found = states[-1]
        states.append("after")
        record_result(path, "1", "after", lambda: states[-1])
        return found

    record_result(path, "1", "other", look_while_the_node_ends)
    assert result_fingerprint(path, "1") == first
    assert result_fingerprint(path, "1") == first
