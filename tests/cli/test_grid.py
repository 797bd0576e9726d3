"""`streamcache grid`: one image with labels, single files, and pictures that are kept with the run."""

import json
from pathlib import Path

import pytest
from PIL import Image

from streamcache.cli.main import main
from streamcache.lora_train.grid import GRID_SETTINGS
from streamcache.reference import model as reference
from streamcache.reference.denoiser import ReferenceDenoiser

from ..lora_train.grid.pictures import write_lora
from ..reference.awake import awake


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """Arguments for a run with the LoRAs of two steps."""
    reference.save_model(tmp_path / "base.safetensors", awake())
    for seed, name in enumerate(("cat-000010", "cat")):
        write_lora(tmp_path / f"{name}.safetensors", seed)
    exports = [{"file": "cat-000010.safetensors", "step": 10, "epoch": 1}]
    exports += [{"file": "cat.safetensors", "step": 20, "epoch": 2}]
    folder = tmp_path / "runs" / "cat"
    folder.mkdir(parents=True)
    described = {"lora": str(tmp_path / "cat.safetensors"), "step": 20, "exports": exports}
    (folder / "run.json").write_text(json.dumps(described))
    sizes = ["--width", "32", "--height", "32", "--steps", "2"]
    named = ["--run", str(folder), "--model", str(tmp_path / "base.safetensors"), "--out", str(tmp_path / "grid.png")]
    return ["grid", "--reference", *named, *sizes]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds of all calls of the sampler."""
    seeds, sample = [], ReferenceDenoiser.sample

    def counting(self, conditioning, shape, seed, steps):
        seeds.append(seed)
        return sample(self, conditioning, shape, seed, steps)

    monkeypatch.setattr(ReferenceDenoiser, "sample", counting)
    return seeds


def test_i2_a_grid_of_a_run_is_one_image_and_single_files(command, drawn, tmp_path, capsys):
    prompts = ["--prompt", "a cat", "--prompt", "a red dog", "--prompt", "a house"]
    assert main([*command, *prompts, "--strengths", "0.6,1", "--seeds", "1,2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["made"] == len(drawn) == len(told["files"]) == 6 * 5
    assert Image.open(tmp_path / "grid.png").width > 5 * 90
    names = sorted(path.name for path in (tmp_path / "grid").iterdir())
    assert names[:3] == ["01-01-without_LoRA.png", "01-02-cat_step_10_x_0.6.png", "01-03-cat_step_10_x_1.png"]
    assert len({Path(file).read_bytes() for file in told["files"]}) == 30


def test_i2_a_grid_of_a_run_grows_and_no_picture_is_made_twice(command, drawn, tmp_path, capsys):
    assert main([*command, "--prompt", "a cat", "--exports", "10"]) == 0
    assert len(drawn) == 2
    assert main([*command, "--prompt", "a cat", "--prompt", "a dog"]) == 0
    assert len(drawn) == 6 and "2 of them kept from before" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "runs/cat/grid/index.json").read_text())["pictures"]) == 6


def test_a_smaller_grid_removes_the_pictures_of_the_one_before_and_no_other_file(command, tmp_path):
    assert main([*command, "--prompt", "a cat", "--prompt", "a dog"]) == 0
    own = tmp_path / "grid" / "01-01-mine.png"
    own.write_bytes(b"mine")
    assert main([*command, "--prompt", "a cat", "--exports", "10"]) == 0
    names = sorted(path.name for path in (tmp_path / "grid").iterdir())
    assert names == ["01-01-mine.png", "01-01-without_LoRA.png", "01-02-cat_step_10_x_1.png", "grid.json"]


def test_i2_lora_files_need_no_run(command, drawn, tmp_path):
    at = command.index("--run")
    plain = command[:at] + command[at + 2 :]
    assert main([*plain, "--prompt", "a cat", "--lora", str(tmp_path / "cat.safetensors"), "--base", "false"]) == 0
    assert len(drawn) == 1 and not (tmp_path / "runs/cat/grid").exists()


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ([], 2, "--prompt: is missing"),
        (["--prompt", "x", "--strengths", "strong"], 2, 'strengths = "strong"'),
        (["--prompt", "x", "--vae", "v"], 2, "--vae: needs --comfyui"),
        (["--prompt", "x", "--cfg", "3"], 2, "--cfg: needs --comfyui"),
        (["--prompt", "x", "--out", "grid.jpg"], 2, "ends in .png"),
        (["--prompt", "x", "--run", "nowhere"], 1, "not the folder of a run"),
        (["--prompt", "x", "--exports", "15"], 1, "cat has no LoRA of step 15; it has 10, 20"),
        (["--prompt", "x", "--lora", "gone.safetensors"], 1, "gone.safetensors: the LoRA file is missing"),
    ],
)
def test_i2_what_cannot_be_drawn_is_refused_before_anything_is_drawn(command, drawn, more, code, words, capsys):
    assert main([*command, *more]) == code
    assert words in capsys.readouterr().err and drawn == []


def test_i3_a_prompt_without_a_text_encoder_is_refused(capsys, tmp_path):
    named = ["--model", "m", "--vae", "v", "--lora", "a.safetensors", "--out", str(tmp_path / "grid.png")]
    assert main(["grid", "--comfyui", "x", *named, "--prompt", "a cat"]) == 2
    assert "--prompt: needs a text encoder; add --clip NAME" in capsys.readouterr().err


def test_every_setting_of_a_grid_is_a_flag(capsys):
    with pytest.raises(SystemExit):
        main(["grid", "--help"])
    help_text = capsys.readouterr().out
    assert all(f"--{name}" in help_text for name in GRID_SETTINGS)
