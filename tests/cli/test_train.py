"""`streamcache train`: every setting is a flag, files and flags mix, and an interrupt keeps the work."""

import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from streamcache.cli import train as cli_train
from streamcache.cli.main import build_parser, main
from streamcache.cli.train import collect_config
from streamcache.dataset_cache import CacheWriter
from streamcache.dataset_cache.setting import parse_setting
from streamcache.lora_train.config import RENAMED_SETTINGS, TRAIN_SETTINGS, TrainConfig
from streamcache.reference import model as reference
from streamcache.reference.encoders import encode_caption, encode_image
from streamcache.reference.images import creatures

BASIC = ["train", "--reference", "--dataset", "set", "--out", "my_lora.safetensors", "--model", "base.safetensors"]


def config_of(*flags: str):
    return collect_config(build_parser().parse_args([*BASIC, *flags]))


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """Arguments of a small real training."""
    import numpy as np
    import torch

    size = reference.ModelSize(width=32, depth=1, heads=2)
    reference.save_model(tmp_path / "base.safetensors", reference.ReferenceModel(size))
    with CacheWriter(tmp_path / "set") as writer:
        for picture in creatures(6):
            pixels = torch.from_numpy(np.asarray(picture.image, np.float32) / 255)
            writer.add(
                latent={"samples": encode_image(pixels)},
                conditioning=encode_caption(picture.caption),
                caption=picture.caption,
            )
    paths = {"dataset": "set", "out": "out/my_lora.safetensors", "model": "base.safetensors"}
    flags = [part for name, path in paths.items() for part in (f"--{name}", str(tmp_path / path))]
    return ["train", "--reference", *flags, "--rank", "2", "--batch-size", "2"]


def test_every_setting_is_a_flag() -> None:
    examples = {int: "3", float: "0.5", bool: "true", str: "x", tuple: "a|b", dict: "main=2"}
    for name, setting in TRAIN_SETTINGS.items():
        text = setting.limits.choices[-1] if setting.limits.choices else examples[setting.type]
        config = config_of("--" + name.replace("_", "-"), text)
        assert config == TrainConfig(**{name: parse_setting(setting, text)})


def test_b6_old_names_are_flags_too(capsys) -> None:
    assert config_of("--lr", "0.5").learning_rate == 0.5
    assert "lr is now learning_rate" in capsys.readouterr().err
    for old in RENAMED_SETTINGS:
        build_parser().parse_args([*BASIC, "--" + old.replace("_", "-"), "1"])


def test_flags_win_over_the_file_and_the_file_over_the_defaults(tmp_path) -> None:
    (tmp_path / "run.toml").write_text("rank = 4\nlr = 0.25\nalpha = 2\n")
    config = config_of("--config", str(tmp_path / "run.toml"), "--learning-rate", "0.125", "--dora")
    assert (config.rank, config.learning_rate, config.alpha, config.dora) == (4, 0.125, 2.0, True)
    assert config_of("--resume").mode == "resume"


def test_for_an_unknown_flag_the_closest_setting_is_suggested(capsys) -> None:
    with pytest.raises(SystemExit) as left:
        main([*BASIC, "--learning-rat", "1"])
    assert left.value.code == 2
    assert 'unknown setting "learning_rat"; did you mean "learning_rate"?' in capsys.readouterr().err


def test_an_invalid_value_is_one_line_and_exit_code_1(capsys, tmp_path) -> None:
    assert main([*BASIC, "--learning-rate", "0"]) == 1
    assert "learning_rate = 0.0: expected a finite number above 0" in capsys.readouterr().err
    (tmp_path / "run.toml").write_text("rnk = 4\n")
    assert main([*BASIC, "--config", str(tmp_path / "run.toml")]) == 1
    assert 'run.toml: unknown setting "rnk"; did you mean "rank"?' in capsys.readouterr().err
    assert main(BASIC) == 1
    assert "no such cache" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "train: no models given; add --comfyui FOLDER to use those of your ComfyUI, or --reference"),
        (["--reference", "--comfyui", "."], "--comfyui and --reference exclude each other"),
        (["--reference", "--vae", "taesd"], "--vae: needs --comfyui FOLDER"),
        (["--guidance", "2"], "--guidance: needs --comfyui FOLDER"),
    ],
)
def test_the_reference_model_must_be_asked_for(options: list[str], words: str, capsys) -> None:
    plain = [argument for argument in BASIC if argument != "--reference"]
    assert main([*plain, *options]) == 1
    assert words in capsys.readouterr().err


def test_it_trains_resumes_and_prints_json(small, tmp_path, capsys) -> None:
    assert main([*small, "--steps", "4", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["step"] == 4 and Path(facts["run"]) == tmp_path / "out/runs/my_lora"
    assert main([*small, "--steps", "6", "--resume"]) == 0
    assert "Trained 6 of 6 steps" in capsys.readouterr().out
    assert load_file(tmp_path / "out/my_lora.safetensors")
    assert not (tmp_path / "out/runs/my_lora-2").exists()


def test_ctrl_c_stops_after_the_step_and_resume_continues(small, tmp_path, capsys) -> None:
    def press() -> None:
        metrics = tmp_path / "out/runs/my_lora/metrics.jsonl"
        while not metrics.exists() or not metrics.stat().st_size:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    before = signal.getsignal(signal.SIGINT)
    assert main([*small, "--steps", "100000"]) == 130
    presser.join()
    assert signal.getsignal(signal.SIGINT) is before
    assert "Stopped early; to continue, run the same command with --resume" in capsys.readouterr().out
    done = json.loads((tmp_path / "out/runs/my_lora/run.json").read_text())
    assert done["status"] == "stopped" and 0 < done["step"] < 100000
    assert main([*small, "--steps", str(done["step"] + 2), "--resume"]) == 0


@pytest.mark.parametrize("ending", [RuntimeError("no memory"), KeyboardInterrupt()])
def test_an_error_or_a_second_ctrl_c_saves_the_lora_so_far(small, tmp_path, monkeypatch, ending) -> None:
    def failing(step) -> str:
        if step.step == 3:
            raise ending
        return ""

    monkeypatch.setattr(cli_train, "describe_step", failing)
    with contextlib.suppress(RuntimeError):
        assert main([*small, "--steps", "9"]) == 130
    rescued = tmp_path / "out/runs/my_lora/my_lora.safetensors"
    assert (tmp_path / "out/my_lora.safetensors").read_bytes() == rescued.read_bytes()
    assert json.loads((tmp_path / "out/runs/my_lora/run.json").read_text())["step"] == 3


@pytest.mark.parametrize("name", ["set", "my_lora.txt", "folder.safetensors"])
def test_an_invalid_output_file_is_refused_before_training(small, name, tmp_path, capsys) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    assert main([*small, "--out", str(tmp_path / name)]) == 1
    assert "ends in .safetensors" in capsys.readouterr().err and not (tmp_path / "runs").exists()
