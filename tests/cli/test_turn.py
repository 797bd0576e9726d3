"""Waiting for a training whose starter was killed."""

import threading
from pathlib import Path

from streamcache.cli.turn import wait_for_turn
from streamcache.dataset_cache import take_lock


def test_a_turn_that_is_free_is_not_waited_for(tmp_path: Path, capsys) -> None:
    assert wait_for_turn(tmp_path / "turn", words="Waiting") and wait_for_turn(tmp_path / "turn")
    assert capsys.readouterr().err == ""


def test_a_turn_is_waited_for_until_it_is_free_which_is_told_once(tmp_path: Path, capsys) -> None:
    lock = take_lock(tmp_path / "turn", 1.0)
    threading.Timer(1.7, lock.release).start()
    assert wait_for_turn(tmp_path / "turn", words="Waiting")
    assert capsys.readouterr().err == "Waiting\n"


def test_waiting_for_a_turn_can_be_stopped(tmp_path: Path) -> None:
    looks = iter((False, True))
    lock = take_lock(tmp_path / "turn", 1.0)
    assert not wait_for_turn(tmp_path / "turn", lambda: next(looks))
    lock.release()
