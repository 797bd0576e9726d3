"""`streamcache lora`: its tools, what they print, and what they refuse."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from streamcache.lora_train import inspect_lora

from ..lora_train.lora_tools.lora_files import changes, close, lora, random, write
from ..support.commands import run, run_json

TOOLS = ("info", "resize", "merge", "average", "convert")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [write(tmp_path / f"{n}.safetensors", lora(4, seed=n), {"ss_session_id": "1"}) for n in range(3)]


@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_has_help_and_takes_json(tool: str, capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as leaving:
        run("lora", tool, "--help")
    text = capsys.readouterr().out
    assert leaving.value.code == 0 and "--json" in text and f"streamcache lora {tool}" in text


def test_i7_info_shows_a_file(files: list[Path], capsys: pytest.CaptureFixture):
    assert run("lora", "info", files[0]) == 0
    text = capsys.readouterr().out
    assert "4 layers of LoRA" in text and "Rank: 4; alpha: 2" in text and "blocks: 3 blocks, 4 layers" in text
    code, facts = run_json(capsys, "lora", "info", files[0])
    assert code == 0 and facts["ranks"] == {"4": 4} and facts["metadata"] == {"ss_session_id": "1"}
    capsys.readouterr()
    assert run("lora", "--json", "info", files[0]) == 0 and json.loads(capsys.readouterr().out) == facts


def test_i7_info_of_a_damaged_file_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture):
    bad = {"m.lora_up.weight": torch.full((4, 2), float("nan")), "m.lora_down.weight": random(2, 4)}
    assert run("lora", "info", write(tmp_path / "a.safetensors", bad)) == 3
    assert "Problem: " in capsys.readouterr().out
    changed = write(tmp_path / "b.safetensors", lora(2), {"sshs_model_hash": "a" * 64})
    assert run("lora", "info", changed) == 3


def test_i7_resize_shows_the_kept_energy(files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture):
    assert run("lora", "resize", files[0], "--rank", 2, "--out", tmp_path / "r.safetensors") == 0
    text = capsys.readouterr().out
    assert "Rank: 4 → 2" in text and "Kept energy: " in text
    dynamic = ("--rank", 8, "--conv-rank", 1, "--dynamic", "energy=0.9", "--dtype", "bf16")
    code, facts = run_json(capsys, "lora", "resize", files[0], *dynamic, "--out", tmp_path / "d.safetensors")
    assert code == 0 and all(layer["kept"] >= 0.9 or layer["rank"] == 1 for layer in facts["layers"])
    assert inspect_lora(tmp_path / "d.safetensors").dtypes == {"BF16": 8}


def test_i7_merge_takes_weights_also_negative_ones(files: list[Path], tmp_path: Path):
    out = tmp_path / "m.safetensors"
    assert run("lora", "merge", *files[:2], "--weights", "-0.5,1", "--out", out) == 0
    one, two = (changes(load_file(path)) for path in files[:2])
    close(changes(load_file(out)), {name: two[name] - 0.5 * one[name] for name in one})
    assert run("lora", "merge", *files[:2], "--out", out) == 1
    assert run("lora", "merge", *files[:2], "--out", out, "--overwrite", "--rank", 3) == 0
    assert inspect_lora(out).to_json()["ranks"] == {"3": 4}


def test_i7_average_takes_files_or_the_exports_of_a_run(files: list[Path], tmp_path: Path):
    folder = tmp_path / "run"
    folder.mkdir()
    exports = [{"file": path.name, "step": step} for step, path in enumerate(files)]
    (folder / "run.json").write_text(json.dumps({"lora": str(files[-1]), "exports": exports}))
    assert run("lora", "average", *files, "--rank", 12, "--out", tmp_path / "a.safetensors") == 0
    assert run("lora", "average", "--exports-of", folder, "--rank", 12, "--out", tmp_path / "b.safetensors") == 0
    close(changes(load_file(tmp_path / "a.safetensors")), changes(load_file(tmp_path / "b.safetensors")), 1e-6)
    one = run("lora", "average", *files, "--of", "factors", "--decay", 0.5, "--out", tmp_path / "c.safetensors")
    made, key = load_file(tmp_path / "c.safetensors"), "lora_unet_blocks_0_mlp_fc1.lora_up.weight"
    shares = [0.25, 0.25, 0.5]
    assert one == 0 and torch.allclose(made[key], sum(s * load_file(p)[key] for s, p in zip(shares, files)))


def test_the_exports_of_a_folder_that_is_no_run_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture):
    for folder in (tmp_path, tmp_path / "missing"):
        assert run("lora", "average", "--exports-of", folder, "--out", tmp_path / "a.safetensors") == 1
        words = f"--exports-of {folder}: not the folder of a run; expected one with a run.json"
        assert words in capsys.readouterr().err


def test_i7_convert_renames_and_says_when_it_needs_the_model(tmp_path: Path, capsys: pytest.CaptureFixture):
    source = write(tmp_path / "a.safetensors", lora(2, naming="comfyui"))
    assert run("lora", "convert", source, "--naming", "kohya", "--out", tmp_path / "k.safetensors") == 0
    assert (
        run("lora", "convert", tmp_path / "k.safetensors", "--naming", "comfyui", "--out", tmp_path / "c.safetensors")
        == 1
    )
    assert "--comfyui FOLDER --model NAME" in capsys.readouterr().err


def test_i7_convert_asks_the_model_for_names(tmp_path: Path):
    from streamcache.reference import ReferenceDenoiser, load_model
    from streamcache.reference.model import ReferenceModel, save_model

    weights = tmp_path / "base.safetensors"
    save_model(weights, ReferenceModel())
    denoiser = ReferenceDenoiser(load_model(weights))
    name, module = next((n, m) for n, m in denoiser.adaptable().items() if hasattr(m, "in_features"))
    kohya, comfyui = (denoiser.export_names(naming)[name] for naming in ("kohya", "comfyui"))
    tensors = {f"{kohya}.lora_up.weight": random(module.out_features, 2)}
    tensors |= {f"{kohya}.lora_down.weight": random(2, module.in_features)}
    source, out = write(tmp_path / "a.safetensors", tensors), tmp_path / "b.safetensors"
    model = ("--reference", "--model", weights)
    assert run("lora", "convert", source, "--naming", "comfyui", *model, "--out", out) == 0
    assert load_file(out)[f"{comfyui}.lora_up.weight"].equal(tensors[f"{kohya}.lora_up.weight"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["shrink"], 'unknown command "shrink"'),
        (["resize", "a", "--out", "b.safetensors"], "--rank"),
        (["resize", "a", "--rank", "4", "--dynamic", "energy", "--out", "b.safetensors"], '--dynamic: found ""'),
        (["resize", "a", "--rank", "0", "--out", "b.safetensors"], "rank: found 0"),
        (["merge", "a", "b", "--conv-rank", "4", "--out", "b.safetensors"], "go with --rank N"),
        (["merge", "a", "b", "--weights", "1;2", "--out", "b.safetensors"], '--weights: found "1;2"'),
        (["merge", "a", "b", "--weights", "1,2,3", "--out", "b.safetensors"], "weights: found 3 for 2 files"),
        (["average", "--out", "b.safetensors"], "give LoRA files, or the folder of a run"),
        (["average", "a", "b", "--decay", "2", "--out", "b.safetensors"], "decay: found 2"),
        (["average", "a", "b", "--decay", ".5", "--weights", "1,2", "--out", "b.safetensors"], "exclude each other"),
        (["convert", "a", "--out", "b.safetensors"], "nothing to convert"),
        (["convert", "a", "--naming", "kohya", "--reference", "--out", "b.safetensors"], "--model NAME goes with"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture):
    try:
        code = run("lora", *arguments)
    except SystemExit as leaving:
        code = leaving.code
    error = capsys.readouterr().err
    assert code == 2 and words in error


def test_a_missing_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert run("lora", "info", tmp_path / "none.safetensors") == 1
    assert capsys.readouterr().err.count("\n") == 1
