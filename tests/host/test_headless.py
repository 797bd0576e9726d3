"""The command line with ComfyUI's models and Python, without a server, and the same workflow with one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from streamcache import dev
from streamcache.cli.host import HEADLESS, VISIBLE, environment
from streamcache.cli.main import main
from streamcache.dataset_cache import CacheWriter, open_cache, realize
from streamcache.tests.host.families import FAMILIES
from streamcache.tests.host.graph import Graph, save_folder
from streamcache.tests.host.pictures import write_pictures
from streamcache.tests.host.server import Server
from streamcache.tests.host.test_dataset_nodes import cache_path
from streamcache.tests.host.tiny_models import TEXT_ENCODER

pytestmark = pytest.mark.host


def arguments(host: dev.Host, base: Path, *more: str) -> list[str]:
    place = ["--comfyui", str(host.folder), "--comfyui-python", str(host.python)]
    return [*place, "--comfyui-args", f'--cpu --base-directory "{base}"', *more]


ENTER = """
import importlib.util, json, os, sys
spec = importlib.util.spec_from_file_location("headless", sys.argv[1])
headless = importlib.util.module_from_spec(spec)
spec.loader.exec_module(headless)
headless.enter_host(sys.argv[2], sys.argv[3:])
import folder_paths
print(json.dumps({"torch": "torch" in sys.modules, "cuda": os.environ.get("CUDA_VISIBLE_DEVICES"),
                  "loras": folder_paths.get_folder_paths("loras"), "vae": folder_paths.get_folder_paths("vae"),
                  "models": folder_paths.get_folder_paths("diffusion_models"),
                  "checkpoints": folder_paths.get_folder_paths("checkpoints"),
                  "clip": folder_paths.get_folder_paths("text_encoders")}))
"""


def test_the_host_is_set_up_with_its_devices_and_saved_models(host: dev.Host, tmp_path: Path):
    options = ["--cpu", "--cuda-device", "1", "--output-directory", str(tmp_path)]
    command = [str(host.python), "-c", ENTER, str(HEADLESS), str(host.folder), *options]
    with_devices = {**os.environ, **environment(options)}
    printed = subprocess.run(command, env=with_devices, check=True, capture_output=True, text=True).stdout
    found = json.loads(printed.splitlines()[-1])
    assert found.pop("cuda") == "1" and not found.pop("torch"), "torch is not imported on the way"
    folders = {
        kind: [Path(path).name for path in paths if Path(path).parent == tmp_path] for kind, paths in found.items()
    }
    assert folders == {kind: ["diffusion_models" if kind == "models" else kind] for kind in found}


@pytest.mark.skipif(sys.platform == "darwin", reason="ComfyUI uses the GPU that every Mac has")
def test_without_a_gpu_one_line_names_the_option_to_add(
    host: dev.Host, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    for name in VISIBLE:
        monkeypatch.setenv(name, "")
    write_pictures(tmp_path / "images", seed=22)
    place = ["--comfyui", str(host.folder), "--comfyui-python", str(host.python)]
    command = ["encode", str(tmp_path / "images"), "--to", str(tmp_path / "set"), *place, "--vae", FAMILIES["flow"].vae]
    assert main([*command, "--comfyui-args", f'--base-directory "{base}"']) == 1
    printed = [line for line in capfd.readouterr().err.splitlines() if "streamcache" in line or "Traceback" in line]
    assert len(printed) == 1 and printed[0].startswith("streamcache: ComfyUI found no GPU (")
    assert printed[0].endswith("; add --comfyui-args=--cpu")
    assert not (tmp_path / "set").exists()


@pytest.fixture(scope="module")
def encoded(host: dev.Host, base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    write_pictures(base / "input" / "headless", seed=21)
    path = tmp_path_factory.mktemp("headless") / "set"
    command = ["encode", str(base / "input" / "headless"), "--to", str(path), "--resolution", "64", "--step", "16"]
    models = ["--vae", FAMILIES["flow"].vae, "--clip", TEXT_ENCODER, "--clip-type", FAMILIES["flow"].clip_type]
    command += ["--thumbnail", "64", "--batch-size", "4", "--strict"]
    assert main([*command, *arguments(host, base, *models)]) == 0
    return path, {"command": command, "models": models}


def test_encoding_uses_the_hosts_models(encoded: tuple[Path, dict]):
    cache = open_cache(encoded[0], check=True)
    assert len([sample.realize() for sample in cache]) == 5
    assert cache[0].latent["samples"].shape == (1, 16, 8, 8)
    assert cache[0].conditioning[0][0].shape[-1] == 4096


def test_f9_captions_of_a_cache_are_encoded_without_its_images(
    encoded: tuple[Path, dict], host: dev.Host, base: Path, tmp_path: Path, capfd: pytest.CaptureFixture
):
    """As if the latents came from elsewhere: the keys and values are those of encoding images with both models."""
    models = encoded[1]["models"]
    with open_cache(encoded[0]) as whole, CacheWriter(tmp_path / "set") as writer:
        for sample in whole:
            writer.add(sample.realize().latent, None, sample.captions, sample.source)
    command = ["encode", "--captions-of", str(tmp_path / "set"), *arguments(host, base, *models[2:])]
    assert main(command) == 0
    with open_cache(encoded[0]) as whole, open_cache(tmp_path / "set", check=True) as cache:
        assert [cache.keys(n)["conditioning"] for n in range(5)] == [whole.keys(n)["conditioning"] for n in range(5)]
        assert all(close(a.conditioning[0][0], b.conditioning[0][0]) for a, b in zip(cache, whole))
        assert cache.named == whole.named
    capfd.readouterr()
    assert main(command) == 0 and "Unchanged" in capfd.readouterr().out


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Up to rounding, which the other captions of a batch decide."""
    return torch.allclose(realize(a), realize(b), rtol=1e-4, atol=1e-4)


def test_entries_equal_those_of_the_nodes(encoded: tuple[Path, dict], server: Server):
    graph = Graph(server)
    save_folder(graph, "input/headless", "from nodes")
    server.succeed(graph.prompt)
    here, there = open_cache(encoded[0]), open_cache(cache_path(server, "from nodes"))
    assert [here.keys(n) for n in range(5)] == [there.keys(n) for n in range(5)]


def test_unknown_models_are_reported(
    host: dev.Host, base: Path, encoded: tuple[Path, dict], capfd: pytest.CaptureFixture
):
    assert main([*encoded[1]["command"], *arguments(host, base, "--vae", "nothing"), "--json"]) == 1
    output, errors = capfd.readouterr()
    words = "--vae nothing: not found in ComfyUI; available:"
    assert words in errors
    assert words in json.loads(output)["error"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--comfyui", ".", "--vae", "taesd"], "not a ComfyUI folder"),
        (["--vae", "taesd"], "need --comfyui FOLDER"),
        (["--comfyui", "."], "name a VAE with --vae, a text encoder with --clip, or both"),
    ],
)
def test_an_invalid_command_is_wrong_usage_and_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], words: str, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(tmp_path)
    assert main(["encode", str(tmp_path), "--to", str(tmp_path / "x"), *options]) == 2
    assert words in capsys.readouterr().err
