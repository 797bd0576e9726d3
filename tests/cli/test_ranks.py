"""`streamcache train --ranks`: the same training in several processes, its stop and its exit code."""

import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ..support.trainings import finish, make_parts, start, steps_of, training, wait_until


def test_ranks_refuse_a_number_below_one(tmp_path: Path) -> None:
    make_parts(tmp_path)
    code, _, errors = finish(start("train", *training(tmp_path), "--ranks=0"))
    assert code == 2 and "--ranks 0: expected 1 or more" in errors


@pytest.mark.slow
def test_ranks_train_the_lora_of_one_process(tmp_path: Path) -> None:
    make_parts(tmp_path)
    for name, ranks in (("one", ()), ("two", ("--ranks=2",))):
        code, _, errors = finish(start("train", *training(tmp_path, name, steps=6), "--deterministic", *ranks))
        assert code == 0, errors
    one, two = (load_file(tmp_path / f"{name}.safetensors") for name in ("one", "two"))
    assert list(one) == list(two) and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.slow
def test_a_stop_reaches_all_ranks_once_and_keeps_the_exit_code(tmp_path: Path) -> None:
    make_parts(tmp_path)
    process = start("train", *training(tmp_path, steps=100000), "--ranks=2")
    run = tmp_path / "runs" / "my_lora"
    wait_until(lambda: steps_of(run))
    process.send_signal(signal.SIGINT)
    code, printed, errors = finish(process)
    assert code == 130 and "Stopping all ranks" in errors and "Stopped early" in printed
    assert list((run / "states").glob("*.safetensors")) and list(tmp_path.glob("my_lora-step*.safetensors"))


@pytest.mark.slow
def test_an_error_of_the_ranks_is_told_with_their_exit_code(tmp_path: Path) -> None:
    make_parts(tmp_path)
    given = [flag for flag in training(tmp_path) if not flag.startswith("--dataset")]
    code, _, errors = finish(start("train", f"--dataset={tmp_path / 'missing'}", *given, "--ranks=2"))
    assert code == 1 and "no such cache" in errors and "ChildFailedError" not in errors
