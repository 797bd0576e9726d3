"""`streamcache queue` and `worker` with ComfyUI's models: a killed worker's training stops by itself, and goes on."""

import os
import signal
from pathlib import Path

import pytest
import torch

from streamcache import dev
from streamcache.dataset_cache import CacheWriter
from streamcache.lora_train.queue import JobQueue
from streamcache.lora_train.run import is_run_locked
from streamcache.tests.host.test_headless import arguments
from streamcache.tests.host.tiny_models import FLOW_MODEL
from streamcache.tests.support.commands import run
from streamcache.tests.support.trainings import start, steps_of, wait_until

pytestmark = [pytest.mark.host, pytest.mark.skipif(os.name == "nt", reason="SIGKILL")]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(1)
    with CacheWriter(tmp_path / "set") as writer:
        for number in range(4):
            pooled = {"pooled_output": torch.randn(1, 2048, generator=generator)}
            writer.add(
                latent={"samples": torch.randn(1, 16, 8, 8, generator=generator)},
                conditioning=[[torch.randn(1, 77, 4096, generator=generator), pooled]],
                caption=f"caption {number}",
            )
    return tmp_path / "set"


def test_i5_a_killed_worker_leaves_no_training_behind_and_the_next_one_completes_the_job(
    host: dev.Host, base: Path, dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture
):
    queue, out = ["--queue", tmp_path / "queue"], tmp_path / "a.safetensors"
    models = arguments(host, base, "--model", FLOW_MODEL)
    settings = ["--steps", 40, "--batch-size", 2, "--rank", 2, "--save-every", 10]
    assert run("queue", "add", *queue, "--dataset", dataset, "--out", out, *settings, *models) == 0
    trained = tmp_path / "runs" / "a"
    process = start("worker", *queue)
    try:
        wait_until(lambda: steps_of(trained) or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
        wait_until(lambda: not is_run_locked(trained), 120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        for stream in (process.stdout, process.stderr):
            stream.close()
    assert 0 < max(steps_of(trained)) < 40 and JobQueue(tmp_path / "queue").read(1).status == "running"
    assert run("worker", *queue, "--once") == 0
    assert "Job 1: a goes on" in capfd.readouterr().err
    assert steps_of(trained) == list(range(1, 41)) and out.is_file()
    assert JobQueue(tmp_path / "queue").read(1).status == "done"
