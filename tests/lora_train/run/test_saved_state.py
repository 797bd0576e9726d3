"""Saved states: whole or not at all, the latest few, and only for the run they belong to."""

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from streamcache.errors import TrainError
from streamcache.lora_train.config import TrainConfig
from streamcache.lora_train.run import saved_state
from streamcache.lora_train.run.saved_state import (
    FORMAT,
    DamagedState,
    SavedState,
    StateFolder,
    StateOrigin,
    check_origin,
    pack,
    read_state,
    resumed_position,
    unpack,
)

from ...support.odd_files import KINDS, make_unreadable, put_odd, returns

ROOT = Path(__file__).resolve().parents[3]
DATASET = SimpleNamespace(id="d1", generation="g1")


def make_state(step: int = 5, **changes) -> SavedState:
    facts = {
        "step": step,
        "position": 10,
        "epoch_length": 7,
        "origin": StateOrigin("d1", "g1", TrainConfig().to_dict()),
        "adapter": {"a.lora_up.weight": torch.randn(3, 2), "a.alpha": torch.tensor(2.0)},
        "optimizer": {
            "state": {0: {"step": torch.tensor(1.0)}},
            "param_groups": [{"betas": (0.9, 0.99), "params": [0]}],
        },
        "ema": {"~updates": torch.tensor(4)},
    }
    return SavedState(**{**facts, **changes})


def test_a_state_is_restored_unchanged(tmp_path) -> None:
    state = make_state(adapter={"w": torch.randn(2).to(torch.bfloat16)})
    back = read_state(StateFolder(tmp_path).save(state))
    assert (back.step, back.position, back.origin) == (5, 10, state.origin)
    assert back.adapter["w"].dtype is torch.bfloat16 and torch.equal(back.adapter["w"], state.adapter["w"])
    assert back.optimizer["param_groups"] == state.optimizer["param_groups"] and int(back.ema["~updates"]) == 4


def test_the_latest_few_are_kept(tmp_path) -> None:
    folder = StateFolder(tmp_path / "states", keep=2)
    for step in (1, 2, 30, 4):
        folder.save(make_state(step))
    assert [path.name for path in folder.files()] == ["step-00000004.safetensors", "step-00000030.safetensors"]
    assert folder.latest().step == 30


def test_a_missing_state_is_none_and_a_damaged_one_is_skipped(tmp_path) -> None:
    folder = StateFolder(tmp_path)
    assert folder.latest() is None
    folder.save(make_state(1))
    (tmp_path / "step-00000002.safetensors").write_bytes(b"half a fi")
    assert folder.latest().step == 1
    (tmp_path / "step-00000001.safetensors").write_bytes(b"")
    with pytest.raises(TrainError, match="cannot be read as a saved state"):
        folder.latest()


def test_a_flipped_bit_in_a_tensor_falls_back_to_the_state_before_with_the_reason(tmp_path, caplog) -> None:
    folder = StateFolder(tmp_path)
    folder.save(make_state(1))
    newest = folder.save(make_state(2))
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1  # in the last tensor
    newest.write_bytes(content)
    assert folder.latest().step == 1
    assert "step-00000002.safetensors: damaged, the content does not match its checksum" in caplog.text


def test_damaged_states_do_not_push_out_the_states_of_the_resumed_run(tmp_path) -> None:
    StateFolder(tmp_path).save(make_state(10))
    (tmp_path / "step-00000030.safetensors").write_bytes(b"half a fi")
    folder = StateFolder(tmp_path, keep=1)
    assert folder.latest().step == 10
    folder.save(make_state(20))
    assert [path.name for path in folder.files()] == ["step-00000020.safetensors"]
    assert (tmp_path / "step-00000030.safetensors.damaged").read_bytes() == b"half a fi"


def test_a_damaged_state_that_cannot_be_renamed_does_not_push_out_intact_ones(tmp_path) -> None:
    StateFolder(tmp_path).save(make_state(10))
    newest = tmp_path / "step-00000030.safetensors"
    newest.write_bytes(b"half a fi")
    folder = StateFolder(tmp_path, keep=1)
    assert folder.latest().step == 10
    (tmp_path / "step-00000030.safetensors.damaged").mkdir()  # renaming to it fails for every user
    folder.save(make_state(20))
    assert [path.name for path in folder.files()] == ["step-00000020.safetensors", newest.name]


def later_state(state: SavedState, **fields) -> bytes:
    """As a later version would save it, with more fields."""
    from safetensors.torch import save

    tree, tensors = pack({**vars(state), "origin": vars(state.origin), **fields})
    text = json.dumps(tree)
    return save(tensors, {"format": FORMAT, "state": text, "checksum": saved_state._checksum(text, tensors)})


def other_format(state: SavedState) -> bytes:
    from safetensors.torch import save

    return save({"a": torch.ones(1)}, {"format": "streamcache-state-9"})


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda state: later_state(state, loader="x"), r"saved by another version \(.*unknown field: loader\)"),
        (lambda state: later_state(state, scaler=3), r"saved by another version \(.*unexpected value\)"),
        (other_format, 'format "streamcache-state-9" is not "streamcache-state-1"'),
    ],
)
def test_a_state_of_another_version_is_refused_and_stays(tmp_path, write, words: str) -> None:
    folder = StateFolder(tmp_path, keep=1)
    folder.save(make_state(1))
    newest = tmp_path / "step-00000002.safetensors"
    content = write(make_state(2))
    newest.write_bytes(content)
    with pytest.raises(TrainError, match=words + "; resume with the version that saved it") as refused:
        folder.latest()
    assert not isinstance(refused.value, DamagedState)  # which the next save renames
    assert newest.read_bytes() == content


NO_MEMORY = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import tests.conftest
import torch
from pathlib import Path
from tests.lora_train.run import test_saved_state as t
from streamcache.errors import TrainError
folder = t.StateFolder(Path(sys.argv[2]))
folder.save(t.make_state(1))
folder.save(t.make_state(2, adapter={"w": torch.zeros(64 << 20)}))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
try:
    print("resumes at", folder.latest().step)
except TrainError as error:
    print(error)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="limits the memory as Linux counts it")
def test_a_state_that_memory_does_not_suffice_for_is_not_taken_for_damaged(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_MEMORY, str(ROOT), str(tmp_path)], capture_output=True, text=True, timeout=600
    )
    assert "step-00000002.safetensors: cannot be read now" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("error", [RuntimeError("can't allocate memory: you tried to allocate 8 bytes"), MemoryError()])
def test_a_tensor_that_cannot_be_allocated_is_not_taken_for_damage(tmp_path, monkeypatch, error: Exception) -> None:
    folder = StateFolder(tmp_path)
    folder.save(make_state(1))
    folder.save(make_state(2))

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(torch, "asarray", fail)  # by which safetensors makes tensors
    monkeypatch.setattr(torch.UntypedStorage, "from_file", fail)
    with pytest.raises(TrainError, match="step-00000002.safetensors: cannot be read now"):
        folder.latest()
    monkeypatch.undo()
    assert folder.latest().step == 2


def test_a_state_of_an_earlier_version_without_a_checksum_loads(tmp_path) -> None:
    from safetensors.torch import save_file

    state = make_state()
    tree, tensors = pack({**vars(state), "origin": vars(state.origin)})
    save_file(tensors, tmp_path / "old.safetensors", {"format": "streamcache-state-1", "state": json.dumps(tree)})
    back = read_state(tmp_path / "old.safetensors")
    assert back.step == 5 and torch.equal(back.adapter["a.lora_up.weight"], state.adapter["a.lora_up.weight"])


def test_loading_a_state_needs_no_pickle(tmp_path) -> None:
    path = StateFolder(tmp_path).save(make_state())
    header = path.read_bytes()[8:9]
    assert header == b"{"


def test_another_format_is_refused(tmp_path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "x.safetensors", {"format": "streamcache-state-9"})
    with pytest.raises(TrainError, match='format "streamcache-state-9" is not'):
        read_state(tmp_path / "x.safetensors")


def test_a_changed_dataset_or_setting_is_named_and_refused_or_accepted_on_request() -> None:
    state = make_state()
    check_origin(state, DATASET, TrainConfig())
    with pytest.raises(TrainError, match="step 5 with other inputs: seed: was 0, is 8"):
        check_origin(state, DATASET, TrainConfig(seed=8))
    with pytest.raises(TrainError, match="dataset: content was g1, is g2"):
        check_origin(state, SimpleNamespace(id="d1", generation="g2"), TrainConfig())
    with pytest.raises(TrainError, match="dataset: was d1, is d2.*accept_changes = true"):
        check_origin(state, SimpleNamespace(id="d2", generation="g1"), TrainConfig())
    check_origin(state, SimpleNamespace(id="d2", generation="g2"), TrainConfig(seed=8, accept_changes=True))


def test_b5_the_position_stays_or_moves_to_the_next_epoch_of_another_length() -> None:
    assert resumed_position(make_state(), 7) == 10
    assert resumed_position(make_state(), 100) == 200
    assert resumed_position(make_state(position=14), 100) == 200


FULL_DISK = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import tests.conftest
import torch
from pathlib import Path
from tests.lora_train.run import test_saved_state as t
from streamcache.errors import TrainError
folder = t.StateFolder(Path(sys.argv[2]))
folder.save(t.make_state(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # as a full disk: the write fails half way
try:
    folder.save(t.make_state(2, adapter={"w": torch.zeros(100_000)}))
except TrainError as error:
    print(error)
"""


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files with setrlimit")
def test_a_disk_that_fills_while_saving_leaves_the_last_state(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(ROOT), str(tmp_path)], capture_output=True, text=True, timeout=600
    )
    assert "could not be saved" in done.stdout and "the last saved state is step-00000001" in done.stdout, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.safetensors"]
    assert StateFolder(tmp_path).latest().step == 1


def test_everything_that_optimizers_keep_survives() -> None:
    state = {
        "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(2, 3)}, 1: {"mode": None, "done": True}},
        "param_groups": [{"lr": 0.1 + 0.2, "betas": (0.9, 0.999), "params": [0, 1], "name": "a", "k": -7}],
        "bounds": [math.inf, -math.inf],
        "empty": {},
    }
    tree, tensors = pack(state)
    back = unpack(json.loads(json.dumps(tree, allow_nan=False)), tensors)
    assert list(back["state"]) == [0, 1] and torch.equal(back["state"][0]["exp_avg"], state["state"][0]["exp_avg"])
    assert back["param_groups"] == state["param_groups"] and isinstance(back["param_groups"][0]["betas"], tuple)
    assert back["bounds"] == state["bounds"] and back["empty"] == {}
    assert set(tensors) == {"state.0.step", "state.0.exp_avg"}


def test_nan_survives_and_unsupported_objects_are_refused_with_their_path() -> None:
    tree, _ = pack([math.nan])
    assert math.isnan(unpack(json.loads(json.dumps(tree, allow_nan=False)), {})[0])
    with pytest.raises(TypeError, match="a.1: object cannot be stored"):
        pack({"a": [1, object()]})


def test_a_packed_tensor_is_a_copy() -> None:
    live = torch.ones(2)
    _, tensors = pack({"w": live})
    live += 1
    assert tensors["w"].tolist() == [1, 1]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("part", [".", "step-00000002.safetensors"])
def test_states_that_cannot_be_listed_or_read_now_are_an_error_with_the_reason(
    tmp_path, number: int, part: str, monkeypatch
) -> None:
    folder = StateFolder(tmp_path / "states")
    for step in (1, 2):
        folder.save(make_state(step))
    make_unreadable(monkeypatch, tmp_path / "states" / part, number)
    with pytest.raises(TrainError, match=rf"states.*{os.strerror(number)}") as raised:
        folder.latest()
    assert not isinstance(raised.value, DamagedState)


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and sockets")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_file_is_no_state(tmp_path, kind: str) -> None:
    folder = StateFolder(tmp_path, keep=1)
    put_odd(kind, tmp_path / "step-00000009.safetensors")
    assert returns(folder.latest) is None
    for step in (1, 10, 11):
        folder.save(make_state(step))
    assert [path.name for path in folder.files()] == ["step-00000011.safetensors"]
    assert folder.latest().step == 11 and os.path.lexists(tmp_path / "step-00000009.safetensors")


def test_old_states_that_cannot_be_removed_or_listed_do_not_stop_a_run(tmp_path, monkeypatch, caplog) -> None:
    folder = StateFolder(tmp_path, keep=1)
    folder.save(make_state(1))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "in use")))
        folder.save(make_state(2))
    assert "could not be removed" in caplog.text and len(folder.files()) == 2
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
        folder.save(make_state(3))
    assert folder.latest().step == 3


def test_a_long_run_resumes_from_its_last_state(tmp_path) -> None:
    folder = StateFolder(tmp_path)
    for step in (99_999_999, 100_000_000):
        folder.save(make_state(step))
    assert folder.latest().step == 100_000_000
