"""Converting: another naming or number type, the same change."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from streamcache.errors import TrainError
from streamcache.lora_train import convert_lora, inspect_lora
from streamcache.lora_train.denoiser import NAMINGS

from ..adapters.other_files import EXPECTED, GOLDEN, Model
from .lora_files import changes, close, lora, random, write


def test_i7_comfyuis_names_become_kohyas_without_the_model(tmp_path: Path):
    tensors = lora(4, naming="comfyui")
    source = write(tmp_path / "a.safetensors", tensors)
    convert_lora(source, tmp_path / "b.safetensors", "kohya")
    made = load_file(tmp_path / "b.safetensors")
    close(changes(made), changes(tensors), 1e-9)
    assert all(key.startswith("lora_unet_blocks_") for key in made)


def test_i7_pefts_keys_become_comfyuis_with_alphas(tmp_path: Path):
    tensors = {key.replace("transformer.", "diffusion_model."): v for key, v in lora(4, naming="diffusers").items()}
    convert_lora(write(tmp_path / "a.safetensors", tensors), tmp_path / "b.safetensors", "comfyui")
    made = load_file(tmp_path / "b.safetensors")
    close(changes(made), changes(tensors), 1e-9)
    assert float(made["diffusion_model.blocks.0.mlp.fc1.alpha"]) == 4


@pytest.mark.parametrize(("own", "wanted"), [("kohya", "comfyui"), ("kohya", "diffusers"), ("comfyui", "diffusers")])
def test_i7_names_that_take_the_model_are_refused_without_it(tmp_path: Path, own: str, wanted: str):
    source = write(tmp_path / "a.safetensors", lora(4, naming=own))
    with pytest.raises(TrainError) as refused:
        convert_lora(source, tmp_path / "b.safetensors", wanted)
    assert f"in the naming {wanted} depends on the model (4 of 4 layers, which are in the naming {own})" in str(
        refused.value
    )
    assert "--comfyui FOLDER --model NAME" in str(refused.value)


@pytest.mark.parametrize("naming", NAMINGS)
def test_i7_the_model_gives_every_naming(tmp_path: Path, naming: str):
    up, down = random(16, 3), random(3, 24, seed=1)
    image = {
        "lora_unet_image.lora_up.weight": random(16, 2, 1, 1),
        "lora_unet_image.lora_down.weight": random(2, 12, 3, 3),
    }
    text = {"lora_te1_x.lora_up.weight": random(4, 2), "lora_te1_x.lora_down.weight": random(2, 4)}
    linear = {"lora_unet_linear.lora_up.weight": up, "lora_unet_linear.lora_down.weight": down}
    source = write(tmp_path / "a.safetensors", linear | image | text | {"lora_unet_linear.alpha": torch.tensor(1.5)})
    report = convert_lora(source, tmp_path / "b.safetensors", naming, denoiser=Model())
    made = load_file(tmp_path / "b.safetensors")
    prefix = {"comfyui": "diffusion_model.", "kohya": "lora_unet_", "diffusers": ""}[naming]
    names = ("lora_B", "lora_A") if naming == "diffusers" else ("lora_up", "lora_down")
    a, b = (made[f"{prefix}linear.{name}.weight"] for name in names)
    scale = 1 if naming == "diffusers" else float(made[f"{prefix}linear.alpha"]) / 3
    assert torch.allclose(scale * a @ b, 0.5 * up @ down, atol=1e-6)
    assert made["lora_te1_x.lora_up.weight"].equal(random(4, 2)) and "2 tensors" in report.notes[0]


@pytest.mark.parametrize("file", ["lokr_linear", "loha_linear", "oft_linear"])
def test_i7_other_kinds_keep_their_parts_in_another_naming(tmp_path: Path, file: str):
    convert_lora(GOLDEN / f"{file}.safetensors", tmp_path / "b.safetensors", "comfyui", denoiser=Model())
    before, made = (load_file(path) for path in (GOLDEN / f"{file}.safetensors", tmp_path / "b.safetensors"))
    assert all(key.startswith("diffusion_model.linear.") for key in made) and "base.linear" in EXPECTED
    by_part = {key.rpartition(".")[2]: value for key, value in made.items()}
    assert all(torch.allclose(by_part[key.rpartition(".")[2]], value.float()) for key, value in before.items())


def test_only_the_number_type_changes_if_only_that_is_asked(tmp_path: Path):
    tensors = lora(4) | {"m.oft_blocks": random(2, 3, 3), "n.a1.weight": random(3, 3), "emb": random(3)}
    tensors |= {"steps": torch.tensor(3)}
    source = write(tmp_path / "a.safetensors", tensors, {"ss_network_alpha": "2.0", "sshs_model_hash": "0"})
    convert_lora(source, tmp_path / "b.safetensors", dtype="fp16")
    made = load_file(tmp_path / "b.safetensors")
    assert made.keys() == tensors.keys() and made["steps"] == 3
    for key, value in tensors.items():
        kept = key.endswith("alpha") or not value.is_floating_point()
        assert made[key].dtype == (value.dtype if kept else torch.float16)
        assert torch.allclose(made[key].double(), value.double(), atol=1e-3)
    with safe_open(tmp_path / "b.safetensors", "pt") as file:
        assert file.metadata()["ss_network_alpha"] == "2.0"
    assert inspect_lora(tmp_path / "b.safetensors").hashes["sshs_model_hash"]


def test_nothing_to_do_is_refused(tmp_path: Path):
    source = write(tmp_path / "a.safetensors", lora(2))
    for given, words in (({}, "nothing to convert"), ({"naming": "peft"}, 'naming: found "peft"')):
        with pytest.raises(TrainError, match=words):
            convert_lora(source, tmp_path / "b.safetensors", **given)
    with pytest.raises(TrainError, match='dtype: found "int8"'):
        convert_lora(source, tmp_path / "b.safetensors", dtype="int8")
    odd = write(tmp_path / "c.safetensors", lora(2, naming="comfyui") | {"x.b1.weight": random(2, 2)})
    with pytest.raises(TrainError, match="x is a GLoRA, which has no other naming"):
        convert_lora(odd, tmp_path / "b.safetensors", "kohya")
