"""Prompts as text and `streamcache grid` with ComfyUI's models and Python, without a server."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from streamcache import dev
from streamcache.cli.main import main
from streamcache.dataset_cache import CacheWriter
from streamcache.tests.host.test_headless import arguments
from streamcache.tests.host.tiny_models import EPS_MODEL, TEXT_ENCODER

pytestmark = pytest.mark.host

MODELS = ["--model", EPS_MODEL, "--vae", "taesd", "--clip", TEXT_ENCODER]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("headless") / "random"
    generator = torch.Generator().manual_seed(1)
    with CacheWriter(path) as writer:
        for number in range(2):
            words = [[torch.randn(1, 77, 768, generator=generator), {"pooled_output": torch.zeros(1, 768)}]]
            latent = {"samples": torch.randn(1, 4, 8, 8, generator=generator)}
            writer.add(latent=latent, conditioning=words, caption=f"caption {number}")
    return path


def test_i3_a_training_encodes_its_prompts_once_and_a_grid_shows_them_with_its_lora(
    host: dev.Host, base: Path, dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture
):
    place = arguments(host, base, *MODELS)
    settings = ["--steps", "2", "--rank", "2", "--sample-every", "2", "--sample-steps", "1", "--sample-cfg", "2"]
    prompts = ["--prompt", "a cat", "--prompt", "a dog on a wall"]
    out = ["--dataset", str(dataset), "--out", str(tmp_path / "my_lora.safetensors")]
    assert main(["train", *out, *settings, *place, *prompts, "--negative-prompt", "blurry"]) == 0
    run = tmp_path / "runs" / "my_lora"
    assert json.loads((run / "run.json").read_text())["prompts"] == ["a cat", "a dog on a wall"]
    assert len(list((run / "samples").glob("step-*.png"))) == 4
    capfd.readouterr()

    sizes = ["--width", "64", "--height", "64", "--steps", "1", "--strengths", "1,2", "--sampler", "euler"]
    grid = ["grid", "--run", str(run), "--out", str(tmp_path / "grid.png"), *sizes, *place, *prompts]
    assert main([*grid, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["made"] == 2 * 3
    assert main([*grid, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["made"] == 0 and len({Path(file).read_bytes() for file in told["files"]}) == 6


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--clip", "nothing.pt"], "--clip nothing.pt: not found in ComfyUI"),
        (["--clip-type", "sd33"], "--clip-type sd33: not found in ComfyUI"),
        (["--sampler", "eular"], 'sampler = "eular": not found in ComfyUI; did you mean "euler"?'),
    ],
)
def test_i2_unknown_names_are_refused(
    host: dev.Host, base: Path, tmp_path: Path, more: list[str], words: str, capfd: pytest.CaptureFixture
):
    save_file({"x.lora_up.weight": torch.zeros(2, 2)}, tmp_path / "x.safetensors")
    named = ["--lora", str(tmp_path / "x.safetensors"), "--out", str(tmp_path / "grid.png"), "--prompt", "a cat"]
    assert main(["grid", *named, *arguments(host, base, *MODELS), *more]) == 1
    assert words in capfd.readouterr().err
