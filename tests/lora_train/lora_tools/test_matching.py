"""Which layers of two files are the same; files for different models are refused."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from streamcache.errors import TrainError
from streamcache.lora_train.lora_tools.matching import match_layers
from streamcache.lora_train.lora_tools.reader import open_lora

from .lora_files import random, write


def match(folder: Path, *files: list[str], told: tuple[dict, ...] = ({}, {})) -> dict:
    paths = []
    for at, prefixes in enumerate(files):
        tensors = {f"{prefix}.lora_up.weight": random(4, 2) for prefix in prefixes}
        tensors |= {f"{prefix}.lora_down.weight": random(2, 4) for prefix in prefixes}
        paths.append(write(folder / f"{at}.safetensors", tensors, told[at]))
    with ExitStack() as opened:
        return match_layers([opened.enter_context(open_lora(path)) for path in paths])


def test_spellings_of_one_layer_meet_under_the_name_in_the_first_file(tmp_path: Path):
    found = match(tmp_path, ["diffusion_model.a.0.qkv"], ["lora_unet_a_0_qkv"])
    assert found == {"diffusion_model.a.0.qkv": [(0, "diffusion_model.a.0.qkv"), (1, "lora_unet_a_0_qkv")]}


def test_a_layer_of_the_second_file_gets_a_name_in_the_naming_of_the_first(tmp_path: Path):
    found = match(tmp_path, ["lora_unet_a_0_qkv"], ["diffusion_model.a.0.qkv", "diffusion_model.b.0"])
    assert found["lora_unet_b_0"] == [(1, "diffusion_model.b.0")]
    with pytest.raises(TrainError, match=r"lora_unet_b_0 has no name in the naming of 0.safetensors \(comfyui\)"):
        match(tmp_path, ["diffusion_model.a.0.qkv"], ["lora_unet_a_0_qkv", "lora_unet_b_0"])


def test_text_encoders_are_not_mistaken_for_the_model(tmp_path: Path):
    found = match(tmp_path, ["lora_unet_a_0", "lora_te1_a_0"], ["lora_unet_a_0", "lora_te2_a_0"])
    assert set(found) == {"lora_unet_a_0", "lora_te1_a_0", "lora_te2_a_0"}


def test_files_without_a_common_layer_are_refused_with_both_names(tmp_path: Path):
    with pytest.raises(TrainError) as refused:
        match(tmp_path, ["lora_te1_x_0", "lora_unet_a_0"], ["lora_te1_x_0", "lora_unet_z_0"])
    assert 'it has "lora_unet_z_0", the other has "lora_unet_a_0"' in str(refused.value)


def test_files_that_name_different_bases_are_refused(tmp_path: Path):
    told = ({"modelspec.architecture": "flux-1-dev/lora"}, {"modelspec.architecture": "qwen-image/lora"})
    with pytest.raises(TrainError, match="is for qwen-image/lora, but 0.safetensors is for flux-1-dev/lora"):
        match(tmp_path, ["diffusion_model.a.0"], ["diffusion_model.b.0"], told=told)


def test_one_layer_twice_in_a_file_is_refused(tmp_path: Path):
    with pytest.raises(TrainError, match="are the same layer; expected it once"):
        match(tmp_path, ["lora_unet_a_0", "diffusion_model.a.0"], ["lora_unet_a_0"])
