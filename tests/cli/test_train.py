"""`streamcache train`: every setting is a flag, files and flags mix, and an interrupt keeps the work."""

import contextlib
import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from streamcache.cli import train as cli_train
from streamcache.cli.main import build_parser, main
from streamcache.cli.train import collect_config
from streamcache.dataset_cache import open_cache
from streamcache.lora_train.config import TRAIN_SETTINGS, TrainConfig
from streamcache.lora_train.config_file import RENAMED_SETTINGS
from streamcache.reference import model as reference
from streamcache.reference.denoiser import ReferenceDenoiser
from streamcache.reference.encoders import ReferenceTextEncoder, latent_scale
from streamcache.setting import OPTIONS, parse_setting

from ..reference.awake import awake

BASIC = ["train", "--reference", "--dataset", "set", "--out", "my_lora.safetensors", "--model", "base.safetensors"]


def config_of(*flags: str):
    return collect_config(build_parser().parse_args([*BASIC, *flags]))


def test_every_setting_is_a_flag() -> None:
    examples = {int: "3", float: "0.5", bool: "true", str: "x", tuple: "a|b", dict: "main=2", OPTIONS: "x=1"}
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


def test_f5_a_limit_of_local_copies_that_is_no_size_is_wrong_usage(capsys) -> None:
    assert main([*BASIC, "--cache-limit", "much"]) == 2
    assert "the limit of local copies: found 'much'; expected a size such as 20GB" in capsys.readouterr().err


def test_c9_for_an_unknown_flag_the_closest_setting_is_suggested(capsys) -> None:
    with pytest.raises(SystemExit) as left:
        main([*BASIC, "--learning-rat", "1"])
    assert left.value.code == 2
    assert 'unknown flag --learning-rat; did you mean "--learning-rate"?' in capsys.readouterr().err


def test_an_invalid_value_is_exit_code_2_and_a_missing_cache_1(capsys, tmp_path) -> None:
    assert main([*BASIC, "--learning-rate", "0"]) == 2
    assert "learning_rate = 0.0: expected a finite number above 0" in capsys.readouterr().err
    (tmp_path / "run.toml").write_text("rnk = 4\n")
    assert main([*BASIC, "--config", str(tmp_path / "run.toml")]) == 2
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
    assert main([*plain, *options]) == 2
    assert words in capsys.readouterr().err


def test_it_trains_resumes_and_prints_json(small, tmp_path, capsys) -> None:
    assert main([*small, "--steps", "4", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["step"] == 4 and Path(facts["run"]) == tmp_path / "out/runs/my_lora"
    assert main([*small, "--steps", "6", "--resume"]) == 0
    assert "Trained 6 of 6 steps" in capsys.readouterr().out
    assert load_file(tmp_path / "out/my_lora.safetensors")
    assert not (tmp_path / "out/runs/my_lora-2").exists()


def test_i1_the_files_along_the_way_are_named_while_they_are_written_and_at_the_end(small, tmp_path, capsys) -> None:
    assert main([*small, "--steps", "5", "--export-every", "2", "--keep-exports", "1"]) == 0
    said = capsys.readouterr()
    assert "Saved my_lora-000002.safetensors (step 2, loss " in said.err and "my_lora-000004" in said.err
    assert f"1 LoRA file of earlier steps in {tmp_path / 'out'}: my_lora-000004.safetensors" in said.out
    assert main([*small, "--steps", "7", "--resume", "--export-every", "2", "--json"]) == 0
    said = capsys.readouterr()
    names = [Path(path).name for path in json.loads(said.out)["exports"]]
    assert names == ["my_lora-000004.safetensors", "my_lora-000006.safetensors"]
    assert not said.err.count("Saved ")


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
    assert "to continue, run the same command with --resume --name my_lora" in capsys.readouterr().out
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
    assert load_file(tmp_path / "out/my_lora-step00000003.safetensors")
    assert not (tmp_path / "out/my_lora.safetensors").exists()
    assert json.loads((tmp_path / "out/runs/my_lora/run.json").read_text())["step"] == 3


@pytest.mark.parametrize("name", ["set", "my_lora.txt", "folder.safetensors"])
def test_an_invalid_output_file_is_refused_before_training(small, name, tmp_path, capsys) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    assert main([*small, "--out", str(tmp_path / name)]) == 2
    assert "ends in .safetensors" in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_a_missing_reference_model_is_reported_with_where_to_get_one(small, tmp_path, capsys) -> None:
    assert main([*small, "--model", str(tmp_path / "nope")]) == 1
    error = capsys.readouterr().err
    assert "nope: no such file; `python dev.py demo` writes a reference model" in error and error.count("\n") == 1


def test_the_printed_share_of_waiting_is_that_of_the_report(small, tmp_path, capsys) -> None:
    assert main([*small, "--steps", "3", "--dora"]) == 0
    (share,) = re.findall(r"([\d.]+%) of the training time waiting for data", capsys.readouterr().out)
    page = (tmp_path / "out/runs/my_lora/report.html").read_text(encoding="utf-8")
    assert f"<b>{share}</b><span>of training waiting for data</span>" in page
    for name, value in {"dora": "on", "masked_loss": "off", "set_weights": "–", "name": "my_lora"}.items():
        assert f"<td>{name}</td><td>{value}</td>" in page
    assert not re.search("<td>(True|False|None|{|\\(|\\[)", page)


def test_an_existing_lora_is_replaced_only_on_request(small, tmp_path, capsys) -> None:
    out = tmp_path / "out/my_lora.safetensors"
    out.parent.mkdir()
    out.write_bytes(b"mine")
    assert main([*small, "--steps", "2"]) == 2
    assert f"--out {out}: exists" in capsys.readouterr().err
    assert out.read_bytes() == b"mine" and not (tmp_path / "out/runs").exists()
    assert main([*small, "--steps", "2", "--mode", "overwrite"]) == 0
    assert load_file(out)


def stop_after_first_step(monkeypatch) -> None:
    monkeypatch.setattr(cli_train, "describe_step", lambda step: (_ for _ in ()).throw(KeyboardInterrupt))


def test_resume_without_a_name_takes_the_latest_run_of_the_output_file(small, tmp_path, monkeypatch, capsys) -> None:
    with monkeypatch.context() as patch:
        stop_after_first_step(patch)
        for _ in range(2):
            assert main([*small, "--steps", "3"]) == 130
    assert sorted(path.name for path in (tmp_path / "out/runs").iterdir()) == ["my_lora", "my_lora-2"]
    assert main([*small, "--steps", "3", "--resume", "--json"]) == 0
    assert Path(json.loads(capsys.readouterr().out)["run"]).name == "my_lora-2"
    assert main([*small, "--steps", "3", "--resume", "--name", "my_lora", "--json"]) == 0
    assert Path(json.loads(capsys.readouterr().out)["run"]).name == "my_lora"


def test_c9_resuming_an_unknown_run_is_refused_with_the_near_name(small, tmp_path, capsys) -> None:
    assert main([*small, "--steps", "2"]) == 0
    assert main([*small, "--steps", "4", "--resume", "--name", "my_lorra"]) == 1
    assert 'has no run "my_lorra"; did you mean "my_lora"?' in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out/runs").iterdir()] == ["my_lora"]


def test_a_refused_training_leaves_no_run(small, tmp_path, capsys) -> None:
    for _ in range(2):
        assert main([*small, "--steps", "2", "--caption-dropout", "0.5"]) == 1
        assert "no encoded empty caption" in capsys.readouterr().err
    assert not (tmp_path / "out/runs").exists()


def test_d6_class_images_of_the_command_line_are_trained_with_their_prompt_which_is_encoded_once(
    tmp_path, picture, small, monkeypatch
) -> None:
    for n in range(3):
        picture(f"mine/{n}.png", size=(64, 64), seed=n, caption=f"my cat {n}")
    for n in range(4):
        picture(f"others/{n}.png", size=(64, 64), seed=10 + n)
    texts, pairs = [], []
    real_encode, real_prepare = ReferenceTextEncoder.encode, ReferenceDenoiser.prepare
    monkeypatch.setattr(
        ReferenceTextEncoder, "encode", lambda self, items: (texts.extend(items), real_encode(self, items))[1]
    )

    def prepare(self, batch):
        pairs.extend(zip(batch.latents.clone(), batch.captions))  # the memory of a batch is used again
        return real_prepare(self, batch)

    monkeypatch.setattr(ReferenceDenoiser, "prepare", prepare)
    cats = ["--class-source", str(tmp_path / "others"), "--class-prompt", "a cat"]
    places = ["encode", str(tmp_path / "mine"), "--to", str(tmp_path / "cats"), "--reference", "--resolution", "64"]
    assert main([*places, *cats]) == 0
    assert texts.count("a cat") == 1
    texts.clear()
    small[small.index("--dataset") + 1] = str(tmp_path / "cats")
    assert main([*small, "--epochs", "2"]) == 0
    assert texts == []
    cache = open_cache(tmp_path / "cats")
    assert sorted(caption for _, caption in pairs) == sorted(["a cat"] * 6 + [f"my cat {n}" for n in range(3)] * 2)
    latents = [sample.realize().latent["samples"][0] for sample in cache]
    for latent, caption in pairs:
        assert cache[next(n for n, own in enumerate(latents) if own.equal(latent))].caption == caption


def test_j2_a_dry_run_says_what_memory_is_needed_and_trains_nothing(small: list[str], tmp_path: Path, capsys) -> None:
    assert main([*small, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    forecast = told["forecast"]
    assert told["fits"] and forecast["rows"] == 2 and forecast["peak"] > forecast["weights"] > 0
    assert not (tmp_path / "out").exists()
    assert main([*small, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("Memory: the training needs ")


def test_a_dry_run_of_what_does_not_fit_exits_with_1_and_names_a_change(small: list[str], monkeypatch, capsys) -> None:
    monkeypatch.setattr(ReferenceDenoiser, "room", lambda self: 1000)
    assert main([*small, "--dry-run"]) == 1
    out = capsys.readouterr().out
    assert "it does not fit" in out and "With checkpointing = true" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--attention", "cudnn"], "attention = cudnn: not available on cpu in float32"),
        (["--start-from", "missing.safetensors"], "missing.safetensors: cannot be read"),
        (["--caption-dropout", "0.5"], "the dataset has no encoded empty caption"),
        (["--sample-every", "1", "--sample-captions", "a zebra"], '"a zebra" is not a caption of the dataset'),
        (["--optimizer-args", "maximize=maybe"], "cannot be used with optimizer_args maximize = 'maybe'"),
        (["--resume"], 'mode = "resume"'),
    ],
)
def test_j2_a_dry_run_refuses_what_the_training_refuses(
    small: list[str], tmp_path: Path, capsys, flags: list[str], message: str
) -> None:
    told = []
    for dry in (["--dry-run"], []):
        assert main([*small, "--steps", "1", *flags, *dry]) != 0
        told.append(capsys.readouterr().err)
    assert told[0] == told[1] and message in told[0]
    assert not (tmp_path / "out").exists()


def test_a_dry_run_is_not_refused_because_the_output_exists(small: list[str], tmp_path: Path, capsys) -> None:
    latent_scale.cache_clear()
    assert main([*small, "--dry-run"]) == 0
    assert main([*small, "--steps", "1"]) == 0  # in the same process
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert main([*small, "--dry-run"]) == 0
    assert "Memory: the training needs " in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}


def test_i3_prompts_are_encoded_once_before_the_training_and_recorded(small, tmp_path, monkeypatch) -> None:
    encoded, encode = [], ReferenceTextEncoder.encode

    def counting(self, items):
        assert not (tmp_path / "out/runs").exists()
        encoded.extend(items)
        return encode(self, items)

    monkeypatch.setattr(ReferenceTextEncoder, "encode", counting)
    reference.save_model(tmp_path / "base.safetensors", awake())
    prompts = ["--prompt", "a blue cat", "--prompt", "a red dog", "--prompt", "a blue cat"]
    assert main([*small, "--steps", "2", "--sample-every", "1", "--sample-steps", "1", *prompts]) == 0
    assert encoded == ["a blue cat", "a red dog"]
    run = tmp_path / "out/runs/my_lora"
    assert json.loads((run / "run.json").read_text())["prompts"] == ["a blue cat", "a red dog", "a blue cat"]
    assert len(list((run / "samples").glob("step-*.png"))) == 3 * 3
    first, other = (run / "samples" / f"step-00000000-{number}.png" for number in (0, 1))
    assert first.read_bytes() != other.read_bytes()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--comfyui", "x", "--prompt", "a cat", "--vae", "v"], "--prompt: needs a text encoder; add --clip NAME"),
        (["--comfyui", "x", "--negative-prompt", "a", "--vae", "v"], "--negative-prompt: needs a text encoder"),
        (["--comfyui", "x", "--prompt", "a cat", "--clip", "c"], "--prompt: sample images need a VAE"),
        (["--comfyui", "x", "--clip", "c"], "--clip: is for --prompt"),
        (["--reference", "--prompt", "a cat", "--clip", "c"], "--clip: needs --comfyui FOLDER"),
        (["--reference", "--prompt", " "], "--prompt: is empty"),
    ],
)
def test_i3_a_prompt_without_a_text_encoder_is_refused_before_anything_starts(options, words, tmp_path, capsys) -> None:
    command = ["train", "--dataset", "no_set", "--out", str(tmp_path / "my_lora.safetensors"), "--model", "m"]
    assert main([*command, *options]) == 2
    assert words in capsys.readouterr().err and not list(tmp_path.iterdir())
