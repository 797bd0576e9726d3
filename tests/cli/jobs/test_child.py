"""A training in a process of its own: its result, its errors, its crash, and its end on request."""

import json
import os
import sys
from pathlib import Path

import psutil
import pytest

from streamcache.cli.jobs.child import Outcome, train_in_child
from streamcache.dataset_cache import take_lock

from ...support.trainings import steps_of, training

ENDLESS = {"steps": 1_000_000, "batch_size": 2, "rank": 2, "name": "my_lora"}


def train(folder: Path, settings: dict[str, object], **options) -> Outcome:
    arguments = [flag for flag in training(folder) if "steps" not in flag][:4]
    return train_in_child(
        arguments, settings, folder / "turn", environment={**os.environ, "OMP_NUM_THREADS": "1"}, **options
    )


def has_trained(folder: Path) -> bool:
    return bool(steps_of(folder / "runs" / "my_lora"))


def test_the_result_or_the_sentence_of_an_error_comes_back(parts: Path) -> None:
    done = train(parts, {**ENDLESS, "steps": 2})
    assert (done.problem, done.stopped, done.result["step"]) == ("", False, 2)
    assert Path(done.result["lora"]).is_file()
    refused = train(parts, {"rank": 0})
    assert refused.problem == "--settings: rank = 0: expected a whole number of at least 1" and not refused.crashed


def test_on_request_it_stops_after_its_step_and_saves(parts: Path) -> None:
    stopped = train(parts, ENDLESS, stop=lambda: has_trained(parts))
    assert stopped.stopped and stopped.result["step"] > 0
    described = json.loads((parts / "runs/my_lora/run.json").read_text())
    assert (described["status"], described["step"]) == ("stopped", stopped.result["step"])


def test_an_interrupt_waits_until_it_has_saved(parts: Path) -> None:
    def interrupt() -> bool:
        if has_trained(parts):
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        train(parts, ENDLESS, stop=interrupt)
    assert json.loads((parts / "runs/my_lora/run.json").read_text())["status"] == "stopped"


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_crash_is_told_from_an_error(parts: Path) -> None:
    def kill() -> bool:
        if has_trained(parts):
            for process in psutil.Process().children():
                if "--turn" in process.cmdline():
                    process.kill()
        return False

    crashed = train(parts, ENDLESS, stop=kill)
    assert crashed.crashed and not crashed.stopped
    assert crashed.problem.startswith("the training's process was ended by SIGKILL; if memory ran out")


def test_it_begins_nothing_while_another_has_the_turn(parts: Path) -> None:
    held = take_lock(parts / "turn")
    try:
        assert train(parts, ENDLESS, stop=lambda: True) == Outcome(stopped=True)
    finally:
        held.release()
    assert not (parts / "runs").exists()
