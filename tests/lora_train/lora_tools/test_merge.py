"""Merging: one file that does what several do together, with their weights."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from streamcache.errors import TrainError
from streamcache.lora_train import RankRule, inspect_lora, merge_loras

from .lora_files import changes, close, lora, random, write


def summed(*weighted: tuple[float, dict]) -> dict[str, torch.Tensor]:
    found = [(weight, changes(tensors)) for weight, tensors in weighted]
    names = dict.fromkeys(name for _, one in found for name in one)
    return {name: sum(weight * one[name] for weight, one in found if name in one) for name in names}


def test_i7_merge_is_the_exact_weighted_sum_of_ranks_and_alphas_of_any_size(tmp_path: Path):
    files = [lora(4, 2.0, seed=1), lora(6, None, seed=2), lora(2, 8.0, seed=3)]
    paths = [write(tmp_path / f"{at}.safetensors", tensors) for at, tensors in enumerate(files)]
    weights = [0.8, -0.5, 1.2]
    report = merge_loras(paths, tmp_path / "sum.safetensors", weights)
    close(changes(load_file(tmp_path / "sum.safetensors")), summed(*zip(weights, files)))
    assert {layer.rank for layer in report.layers} == {12} and report.kept == 1


@pytest.mark.parametrize("namings", [("kohya", "comfyui"), ("comfyui", "kohya"), ("diffusers", "comfyui")])
def test_i7_namings_of_one_model_are_the_same_layers(tmp_path: Path, namings: tuple[str, str]):
    files = [lora(4, seed=at, naming=naming) for at, naming in enumerate(namings)]
    paths = [write(tmp_path / f"{at}.safetensors", tensors) for at, tensors in enumerate(files)]
    merge_loras(paths, tmp_path / "sum.safetensors")
    close(changes(load_file(tmp_path / "sum.safetensors")), summed((1, files[0]), (1, files[1])))
    assert inspect_lora(tmp_path / "sum.safetensors").naming == namings[0]


def test_i7_merge_to_a_rank_is_the_nearest_change(tmp_path: Path):
    files = [lora(4, seed=1), lora(6, seed=2)]
    paths = [write(tmp_path / f"{at}.safetensors", tensors) for at, tensors in enumerate(files)]
    report = merge_loras(paths, tmp_path / "sum.safetensors", rule=RankRule(5))
    expected = {}
    for name, change in summed((1, files[0]), (1, files[1])).items():
        u, values, v = torch.linalg.svd(change, full_matrices=False)
        expected[name] = u[:, :5] * values[:5] @ v[:5]
    close(changes(load_file(tmp_path / "sum.safetensors")), expected, 1e-5)
    assert report.kept < 1 and "Kept energy" in "\n".join(report.lines())


@pytest.mark.parametrize("rule", [None, RankRule(3)])
def test_loras_that_cancel_out_change_nothing_and_are_reported(tmp_path: Path, rule: RankRule | None):
    paths = [write(tmp_path / f"{at}.safetensors", lora(4, seed=1)) for at in range(2)]
    report = merge_loras(paths, tmp_path / "sum.safetensors", [0.7, -0.7], rule)
    assert all(not change.any() for change in changes(load_file(tmp_path / "sum.safetensors")).values())
    layers = len(report.layers)
    assert report.notes == [f"The files cancel each other out in {layers} layers: nothing is changed there"]
    assert {layer.rank for layer in report.layers} == {1}


def test_layers_of_one_file_alone_and_changes_of_biases_and_norms_are_kept(tmp_path: Path):
    both, more = lora(2, seed=1), lora(2, seed=2)
    extra = {"lora_unet_x.lora_up.weight": random(6, 2), "lora_unet_x.lora_down.weight": random(2, 5)}
    rest = {"lora_unet_blocks_0_mlp_fc1.diff_b": random(40), "lora_unet_norm.w_norm": random(9)}
    paths = [write(tmp_path / "a.safetensors", both | rest), write(tmp_path / "b.safetensors", more | extra | rest)]
    merge_loras(paths, tmp_path / "sum.safetensors", [1, 0.5])
    made = load_file(tmp_path / "sum.safetensors")
    close(changes(made), summed((1, both), (0.5, more | extra)))
    assert torch.allclose(made["lora_unet_blocks_0_mlp_fc1.diff_b"], 1.5 * random(40))
    assert torch.allclose(made["lora_unet_norm.diff"], 1.5 * random(9))


def test_i7_other_kinds_merge_to_a_rank_and_are_refused_without_one(tmp_path: Path):
    small, large = random(4, 5), random(6, 4, seed=1)
    kron = {"lora_unet_blocks_0_attn_to_q.lokr_w1": small, "lora_unet_blocks_0_attn_to_q.lokr_w2": large}
    paths = [write(tmp_path / "a.safetensors", lora(2)), write(tmp_path / "b.safetensors", kron)]
    with pytest.raises(TrainError, match=r"blocks_0_attn_to_q is a LoRA \+ LoKr, whose exact sum .* give a rank"):
        merge_loras(paths, tmp_path / "sum.safetensors")
    merge_loras(paths, tmp_path / "sum.safetensors", rule=RankRule(32))
    expected = changes(lora(2))
    expected["blocks_0_attn_to_q"] = expected["blocks_0_attn_to_q"] + torch.kron(small, large).double()
    close(changes(load_file(tmp_path / "sum.safetensors")), expected, 1e-5)


def test_the_metadata_has_what_all_files_say_and_each_source_with_its_weight(tmp_path: Path):
    base = {"ss_base_model_version": "sdxl_base_v1-0", "ss_seed": "1", "streamcache.partial": "step 1 of 2"}
    own = [{"ss_unet_lr": str(n), "modelspec.trigger_phrase": f"zog{n}"} for n in (1, 2)]
    paths = [write(tmp_path / f"{n}.safetensors", lora(2, seed=n), base | own[n - 1]) for n in (1, 2)]
    merge_loras(paths, tmp_path / "sum.safetensors", [1, 0.25])
    with safe_open(tmp_path / "sum.safetensors", "pt") as file:
        metadata = file.metadata()
    assert metadata["ss_base_model_version"] == "sdxl_base_v1-0" and metadata["ss_network_dim"] == "4"
    assert (
        not metadata.keys() & {"ss_unet_lr", "ss_seed", "streamcache.partial"} and metadata["ss_output_name"] == "sum"
    )
    assert metadata["modelspec.trigger_phrase"] == "zog1, zog2"
    made = json.loads(metadata["streamcache.made_from"])
    assert [(s["file"], s["weight"]) for s in made["sources"]] == [("1.safetensors", 1.0), ("2.safetensors", 0.25)]
    assert inspect_lora(tmp_path / "sum.safetensors").hashes["sshs_model_hash"]


def test_other_shapes_are_refused_with_the_name_of_the_layer(tmp_path: Path):
    other = lora(2)
    other["lora_unet_blocks_0_mlp_fc1.lora_down.weight"] = random(2, 23)
    paths = [write(tmp_path / "a.safetensors", lora(2)), write(tmp_path / "b.safetensors", other)]
    with pytest.raises(TrainError) as refused:
        merge_loras(paths, tmp_path / "sum.safetensors")
    assert "blocks_0_mlp_fc1: changes a weight of (40, 23), which is (40, 24) in a.safetensors" in str(refused.value)
    assert not (tmp_path / "sum.safetensors").exists()


def test_tensors_of_no_adapter_cannot_be_merged(tmp_path: Path):
    paths = [write(tmp_path / f"{n}.safetensors", lora(2) | {"emb": random(3)}) for n in (1, 2)]
    with pytest.raises(TrainError, match="emb is no part of an adapter"):
        merge_loras(paths, tmp_path / "sum.safetensors")


@pytest.mark.parametrize(
    ("weights", "words"),
    [([1.0], "found 1 for 2 files"), ([0.0, 0.0], "not all 0"), ([1.0, float("nan")], "expected numbers")],
)
def test_wrong_weights_are_refused(tmp_path: Path, weights: list[float], words: str):
    paths = [write(tmp_path / f"{n}.safetensors", lora(2)) for n in (1, 2)]
    with pytest.raises(TrainError, match=words):
        merge_loras(paths, tmp_path / "sum.safetensors", weights)
    with pytest.raises(TrainError, match="found 1 files, expected 2"):
        merge_loras(paths[:1], tmp_path / "sum.safetensors")
