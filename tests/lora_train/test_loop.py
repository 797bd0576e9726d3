"""The training loop: what it trains on, how it ends, and that a run cut short is the same run when it goes on."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from streamcache.dataset_cache import open_cache
from streamcache.errors import TrainError
from streamcache.lora_train import step
from streamcache.lora_train.config import TrainConfig
from streamcache.lora_train.data import share_windows
from streamcache.lora_train.data.order import BatchPlan
from streamcache.lora_train.data.prefetch import Loaded
from streamcache.lora_train.loop import TrainHooks
from streamcache.lora_train.run.folder import open_run
from streamcache.lora_train.run.metrics import read_curves, read_metrics
from streamcache.lora_train.session import open_session

from ..support.small_parts import SmallDenoiser, make_dataset, run_training
from .short_runs import FULL, assert_same_state, last_state, losses

ROOT = Path(__file__).resolve().parents[2]


def test_a_run_lowers_the_loss_and_leaves_a_file_metrics_and_a_report(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    result = run_training(tmp_path, dataset, steps=150, validation_share=0.1, validation_every=50, lr_schedule="linear")
    curve = [value for _, value in losses(tmp_path)]
    assert len(curve) == 150 and np.mean(curve[-20:]) < 0.8 * np.mean(curve[:20])
    held = read_curves(tmp_path / "runs/test/metrics.jsonl").validation
    assert [step for step, _ in held] == [0, 50, 100, 150] and held[-1][1] < held[0][1]
    assert result.lora.exists() and not result.stopped
    for name in ("report.html", "loss.png", "run.json", "states/step-00000150.safetensors"):
        assert (tmp_path / "runs/test" / name).stat().st_size > 0
    assert json.loads((tmp_path / "runs/test/run.json").read_text())["status"] == "done"


def test_the_file_names_its_dataset_steps_and_seed(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    result = run_training(tmp_path, dataset, seed=7)
    with safe_open(result.lora, "pt") as file:
        metadata = file.metadata()
    assert metadata["ss_dataset_id"] == dataset.id and metadata["ss_steps"] == "6" and metadata["ss_seed"] == "7"


def test_the_same_seed_gives_the_same_file_bit_for_bit_and_another_seed_another(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    files = [load_file(run_training(tmp_path / str(n), dataset, seed=seed).lora) for n, seed in enumerate((3, 3, 4))]
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])
    assert not all(torch.equal(files[0][name], files[2][name]) for name in files[0])


def test_prefetching_changes_nothing_but_time(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    for depth in (0, 3):
        run_training(tmp_path / str(depth), dataset, prefetch=depth)
    assert losses(tmp_path / "0") == losses(tmp_path / "3")


KILLED = """
import os, signal, sys
root, folder, step = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.path.insert(0, root)
import tests.conftest
from pathlib import Path
from tests.lora_train import test_loop
from tests.support.small_parts import TrainHooks, run_training
from streamcache.dataset_cache import open_cache
def kill(progress):
    if progress.step == step:
        os.kill(os.getpid(), signal.SIGKILL)
dataset = open_cache(Path(folder).parent / "set")
mode = "resume" if (Path(folder) / "runs/test").exists() else "new"
run_training(Path(folder), dataset, hooks=TrainHooks(progress=kill), mode=mode, **test_loop.FULL)
"""


@pytest.mark.skipif(os.name != "posix", reason="kills a process with SIGKILL")
def test_b5_twenty_steps_equal_ten_and_a_kill_and_ten_bit_for_bit(tmp_path) -> None:
    make_dataset(tmp_path / "set")

    def child(folder: str, step: int) -> int:
        command = [sys.executable, "-c", KILLED, str(ROOT), str(tmp_path / folder), str(step)]
        return subprocess.run(
            command, capture_output=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"}
        ).returncode

    assert child("whole", -1) == 0
    assert child("killed", 13) == -signal.SIGKILL  # three steps after the state of step 10
    assert last_state(tmp_path / "killed").step == 10
    assert child("killed", -1) == 0
    assert_same_state(last_state(tmp_path / "whole"), last_state(tmp_path / "killed"))
    files = [load_file(tmp_path / part / "runs/test/test.safetensors") for part in ("whole", "killed")]
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])
    assert losses(tmp_path / "whole") == losses(tmp_path / "killed")


def test_b5_no_sample_is_skipped_or_repeated_over_a_stop(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set", 24)
    denoiser = SmallDenoiser()
    seen = []
    run_training(tmp_path, dataset, denoiser, TrainHooks(stop=lambda: len(denoiser.calls) >= 2), steps=6)
    run_training(tmp_path, dataset, denoiser, mode="resume", steps=6)
    for call in denoiser.calls:
        seen += call["text"][:, 0, 0].tolist()
    assert sorted(seen) == list(range(24))


def test_a_stop_saves_the_work_and_is_reported(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    count = iter(range(100))
    result = run_training(tmp_path, dataset, hooks=TrainHooks(stop=lambda: next(count) == 3), steps=50)
    assert result.stopped and result.step == 3 and result.lora.exists() and last_state(tmp_path).step == 3


def test_an_error_in_the_middle_keeps_the_work_and_is_raised_unchanged(tmp_path) -> None:
    class Breaks(SmallDenoiser):
        def predict(self, *args):
            if len(self.calls) == 4:
                raise RuntimeError("out of memory, say")
            return super().predict(*args)

    denoiser = Breaks()
    with pytest.raises(RuntimeError, match="out of memory, say"):
        run_training(tmp_path, make_dataset(tmp_path / "set"), denoiser)
    assert last_state(tmp_path).step == 4 and denoiser.open_sessions == 0
    assert not any(module._forward_hooks for module in denoiser.layers.values())
    assert not [thread for thread in threading.enumerate() if thread.name == "streamcache-prefetch"]


def test_a_loss_of_nan_stops_the_run_and_keeps_the_last_good_state(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    with pytest.raises(TrainError, match="step 6: the loss is nan.*last good state is .*step-00000004"):
        run_training(tmp_path, dataset, SmallDenoiser(fails_at=6), steps=10, save_every=2)
    state = last_state(tmp_path)
    assert state.step == 4 and all(value.isfinite().all() for value in state.adapter.values())
    assert [step for step, _ in losses(tmp_path)] == [1, 2, 3, 4, 5]
    run_training(tmp_path, dataset, mode="resume", steps=10, save_every=2)
    assert last_state(tmp_path).step == 10


def test_an_interrupt_within_an_update_keeps_the_state_before_it(tmp_path, monkeypatch) -> None:
    calls, real = [], torch.optim.AdamW.step

    def interrupted(self, *args):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(self, *args)

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_training(tmp_path, make_dataset(tmp_path / "set"), save_every=2)
    assert last_state(tmp_path).step == 2


FULL_DISK = """
import resource, sys
root, folder = sys.argv[1], sys.argv[2]
sys.path.insert(0, root)
import tests.conftest
from pathlib import Path
from tests.support.small_parts import TrainHooks, TrainError, make_dataset, run_training
def fill(progress):
    if progress.step == 3:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # no file can grow beyond: as a full disk
dataset = make_dataset(Path(folder) / "set")
try:
    run_training(Path(folder), dataset, hooks=TrainHooks(progress=fill), save_every=2)
except TrainError as error:
    print(error)
"""


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files with setrlimit")
def test_a_disk_that_fills_while_saving_leaves_the_last_state_to_resume_from(tmp_path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(ROOT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert "step-00000004.safetensors: could not be saved" in done.stdout, done.stderr
    assert last_state(tmp_path).step == 2
    assert run_training(tmp_path, open_cache(tmp_path / "set"), mode="resume", save_every=2).step == 6


def test_weights_that_are_not_finite_are_never_saved(tmp_path) -> None:
    # The loss of step 4 is a number, its gradient is not: the state of step 4 must not replace that of step 2.
    class Overflows(SmallDenoiser):
        def predict(self, *args):
            out = super().predict(*args)
            if len(self.calls) == 4:
                out.register_hook(lambda gradient: gradient * torch.inf)
            return out

    with pytest.raises(TrainError, match="step 4: .* weights are nan or infinite.*step-00000002"):
        run_training(tmp_path, make_dataset(tmp_path / "set"), Overflows(), steps=10, save_every=2)
    assert all(value.isfinite().all() for value in last_state(tmp_path).adapter.values())


def test_the_file_can_be_saved_in_half_precision(tmp_path) -> None:
    result = run_training(tmp_path, make_dataset(tmp_path / "set"), save_dtype="bf16")
    assert load_file(result.lora)["diffusion_model.up.lora_up.weight"].dtype is torch.bfloat16


def test_accumulated_batches_are_one_larger_batch(tmp_path, monkeypatch) -> None:
    # Noise belongs to the batch; with none of it, 3 + 1 rows must give the gradients of 4 rows.
    monkeypatch.setattr(step, "draw_noise", lambda latents, *_: torch.zeros_like(latents))
    dataset = make_dataset(tmp_path / "set", 12)
    gradients = []
    for windows in ([[0, 3, 6], [9]], [[0, 3, 6, 9]]):  # one bucket
        plans = [BatchPlan(n, 0, rows, {}, len(rows)) for n, rows in enumerate(windows)]
        config = TrainConfig(rank=2, accumulate=len(plans), t_min=0.5, t_max=0.500001)
        with open_run(tmp_path / "runs", "test") as run:
            session = open_session(SmallDenoiser(), dataset, config, run)
        loaded = (Loaded(plan, dataset.read_batch(plan.indices)) for plan in share_windows(iter(plans), len(plans)))
        with session.network.attached(session.denoiser.adaptable()):
            session.stepper.backward(loaded)
        gradients.append([parameter.grad for parameter in session.network.parameters()])
    for one, other in zip(*gradients):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_short_batch_counts_by_its_rows_when_gradients_are_added_up() -> None:
    plans = [BatchPlan(n, 0, list(range(rows)), {}, rows) for n, rows in enumerate((4, 4, 1, 3, 2))]
    shares = [plan.share for plan in share_windows(iter(plans), 2)]
    assert shares == [0.5, 0.5, 0.25, 0.75, 1.0]


def test_epochs_are_counted_in_whole_passes(tmp_path) -> None:
    denoiser = SmallDenoiser()
    result = run_training(tmp_path, make_dataset(tmp_path / "set"), denoiser, epochs=3)
    assert result.steps == 18
    seen = torch.cat([call["text"][:, 0, 0] for call in denoiser.calls]).tolist()
    assert sorted(seen) == sorted(list(range(24)) * 3)


def test_global_generators_are_left_alone(tmp_path) -> None:
    dataset, denoiser = make_dataset(tmp_path / "set"), SmallDenoiser()
    torch.manual_seed(5), np.random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    run_training(tmp_path, dataset, denoiser, **FULL)
    assert torch.equal(before[0], torch.get_rng_state()) and (before[1] == np.random.get_state()[1]).all()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains(tmp_path, precision: str) -> None:
    run_training(tmp_path, make_dataset(tmp_path / "set"), steps=60, precision=precision)
    curve = [value for _, value in losses(tmp_path)]
    assert np.mean(curve[-15:]) < np.mean(curve[:15])
    assert all(value.dtype is torch.float32 for value in last_state(tmp_path).adapter.values())


def test_it_trains_under_the_hosts_inference_mode(tmp_path) -> None:
    dataset, denoiser = make_dataset(tmp_path / "set"), SmallDenoiser()
    with torch.inference_mode():
        assert run_training(tmp_path, dataset, denoiser, validation_share=0.1, sample_every=2, sample_steps=1).step == 6


def test_metrics_hold_every_fact_of_a_step(tmp_path) -> None:
    run_training(tmp_path, make_dataset(tmp_path / "set"))
    row = next(row for row in read_metrics(tmp_path / "runs/test/metrics.jsonl") if "loss" in row)
    assert set(row) == {"step", "epoch", "loss", "learning_rate", "gradient_norm", "waited", "time"}


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_ctrl_c_within_an_update_saves_the_finished_step(tmp_path, monkeypatch, optimizer: str) -> None:
    dataset, settings = make_dataset(tmp_path / "set"), {"optimizer": optimizer, "ema_decay": 0.9, "steps": 8}
    run_training(tmp_path / "whole", dataset, **settings)
    kind = getattr(torch.optim, optimizer)
    calls, real = [], kind.step

    def interrupted(self, *args):
        calls.append(1)
        if len(calls) == 4:
            signal.raise_signal(signal.SIGINT)
        return real(self, *args)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    try:
        with monkeypatch.context() as during, pytest.raises(KeyboardInterrupt):
            during.setattr(kind, "step", interrupted)
            run_training(tmp_path / "cut", dataset, **settings)
    finally:
        signal.signal(signal.SIGINT, before)
    assert last_state(tmp_path / "cut").step == 4
    run_training(tmp_path / "cut", dataset, mode="resume", **settings)
    assert_same_state(last_state(tmp_path / "whole"), last_state(tmp_path / "cut"))
