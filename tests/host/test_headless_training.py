"""`streamcache train --comfyui`: ComfyUI's models and Python without a server."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from streamcache import dev
from streamcache.cli.main import main
from streamcache.dataset_cache import CacheWriter
from streamcache.tests.host.test_headless import arguments
from streamcache.tests.host.tiny_models import FLOW_MODEL
from streamcache.tests.support.package import run_python

pytestmark = pytest.mark.host

SETTINGS = ["--steps", "4", "--batch-size", "2", "--rank", "2", "--seed", "3", "--mode", "overwrite"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("headless") / "random"
    generator = torch.Generator().manual_seed(1)
    with CacheWriter(path) as writer:
        for number in range(4):
            pooled = {"pooled_output": torch.randn(1, 2048, generator=generator)}
            writer.add(
                latent={"samples": torch.randn(1, 16, 8, 8, generator=generator)},
                conditioning=[[torch.randn(1, 77, 4096, generator=generator), pooled]],
                caption=f"caption {number}",
            )
    return path


def command(host: dev.Host, base: Path, dataset: Path, out: Path, *more: str) -> list[str]:
    place = arguments(host, base, "--model", FLOW_MODEL, "--vae", "taesd3")
    return ["train", "--dataset", str(dataset), "--out", str(out), *SETTINGS, *place, *more]


def test_training_on_a_model_of_the_host_draws_sample_images(
    host: dev.Host, base: Path, dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture
):
    samples = ["--sample-every", "2", "--sample-steps", "2", "--guidance", "1.5", "--json"]
    assert main(command(host, base, dataset, tmp_path / "a.safetensors", *samples)) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed["step"] == 4 and Path(printed["lora"]) == tmp_path / "a.safetensors"
    assert all(key.startswith("diffusion_model.") for key in load_file(tmp_path / "a.safetensors"))
    assert len(list((tmp_path / "runs" / "a" / "samples").glob("step-*.png"))) == 3
    described = json.loads((tmp_path / "runs" / "a" / "run.json").read_text(encoding="utf-8"))
    assert (described["model"], described["host"]["guidance"]) == (FLOW_MODEL, 1.5)


def test_a_vae_draws_sample_images_even_without_an_interval(host: dev.Host, base: Path, dataset: Path, tmp_path: Path):
    assert main(command(host, base, dataset, tmp_path / "d.safetensors", "--sample-steps", "1", "--steps", "2")) == 0
    made = sorted(path.name for path in (tmp_path / "runs" / "d" / "samples").glob("step-*.png"))
    assert made == [f"step-{step:08}-0.png" for step in range(3)]


@pytest.mark.skipif(os.name == "nt", reason="a console's Ctrl-C cannot be sent to one process there")
def test_ctrl_c_saves_and_resume_continues(host: dev.Host, base: Path, dataset: Path, tmp_path: Path):
    out, metrics = tmp_path / "b.safetensors", tmp_path / "runs" / "b" / "metrics.jsonl"
    arguments_ = command(host, base, dataset, out, "--steps", "1000000", "--save-every", "0")
    code = "from streamcache.cli.main import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(run_python(code, *arguments_), start_new_session=True)
    try:
        end = time.monotonic() + 200
        while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole process group
        assert process.wait(200) == 130
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    step = json.loads((tmp_path / "runs" / "b" / "run.json").read_text(encoding="utf-8"))["step"]
    assert step >= 1 and out.with_name(f"b-step{step:08}.safetensors").exists() and not out.exists()
    assert main(command(host, base, dataset, out, "--steps", str(step + 2), "--save-every", "0", "--resume")) == 0
    assert json.loads((tmp_path / "runs" / "b" / "run.json").read_text(encoding="utf-8"))["step"] == step + 2


def test_an_unknown_model_is_reported(
    host: dev.Host, base: Path, dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture
):
    assert main(command(host, base, dataset, tmp_path / "c.safetensors", "--model", "nothing")) == 1
    assert "--model nothing: not found in ComfyUI; available:" in capfd.readouterr().err
    misspelled = FLOW_MODEL.replace("e", "", 1)
    assert main(command(host, base, dataset, tmp_path / "c.safetensors", "--model", misspelled)) == 1
    words = f'--model {misspelled}: not found in ComfyUI; did you mean "{FLOW_MODEL}"?'
    assert words in capfd.readouterr().err


@pytest.mark.parametrize("option", [["--vae", "taesd3"], ["--offload"], ["--guidance", "2"]])
def test_options_of_the_host_need_the_host(
    dataset: Path, tmp_path: Path, option: list[str], capsys: pytest.CaptureFixture
):
    plain = ["train", "--dataset", str(dataset), "--out", str(tmp_path / "x.safetensors"), "--model", "m.safetensors"]
    assert main([*plain, *option]) == 2
    assert "--comfyui" in capsys.readouterr().err
