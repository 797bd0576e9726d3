"""What is said about a file: kinds, ranks, norms, hashes, and damage as problems."""

import json
from pathlib import Path

import pytest
import torch

from streamcache.lora_train import inspect_lora

from .lora_files import changes, lora, random, write

KINDS = {
    "LoRA": {"lora_up.weight": (4, 2), "lora_down.weight": (2, 4)},
    "DoRA": {"lora_up.weight": (4, 2), "lora_down.weight": (2, 4), "dora_scale": (1, 4)},
    "LoHa": {"hada_w1_a": (4, 2), "hada_w1_b": (2, 4), "hada_w2_a": (4, 2), "hada_w2_b": (2, 4)},
    "LoKr": {"lokr_w1": (2, 2), "lokr_w2": (2, 2)},
    "LoKr with DoRA": {"lokr_w1": (2, 2), "lokr_w2": (2, 2), "dora_scale": (4, 1)},
    "OFT": {"oft_blocks": (2, 2, 2)},
    "BOFT": {"oft_blocks": (2, 2, 2, 2)},
    "GLoRA": {"a1.weight": (2, 4), "a2.weight": (4, 2), "b1.weight": (4, 2), "b2.weight": (2, 4)},
    "full": {"diff": (4, 4)},
    "norm": {"w_norm": (4,)},
    "bias": {"diff_b": (4,)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_i7_every_kind_is_named_for_what_it_is(tmp_path: Path, kind: str):
    tensors = {f"lora_unet_blocks_0_x.{part}": random(*size) for part, size in KINDS[kind].items()}
    info = inspect_lora(write(tmp_path / "a.safetensors", tensors))
    assert info.kinds == {kind: 1} and not info.problems and not info.unknown
    assert (info.layers[0].norm is not None) == (kind in ("LoRA", "LoHa", "LoKr", "full"))
    json.dumps(info.to_json(), allow_nan=False)
    assert f"1 layer of {kind}" in next(info.lines())


def test_i7_ranks_alphas_blocks_and_norms_are_those_of_the_file(tmp_path: Path):
    tensors = lora(4, 2.0)
    tensors["lora_te1_layers_0_x.lora_up.weight"] = random(6, 2).half()
    tensors["lora_te1_layers_0_x.lora_down.weight"] = random(2, 5).half()
    info = inspect_lora(write(tmp_path / "a.safetensors", tensors))
    facts, expected = info.to_json(), changes(tensors)
    assert (facts["ranks"], facts["alphas"]) == ({"2": 1, "4": 4}, {"2": 5})
    assert facts["dtypes"] == {"F32": 8, "F16": 2} and facts["naming"] == "kohya"
    groups = {(group["part"], group["group"]): group for group in facts["groups"]}
    blocks = groups["model", "blocks"]
    assert (blocks["blocks"], blocks["layers"], blocks["ranks"]) == (3, 4, [4])
    square = sum(float(change.norm()) ** 2 for name, change in expected.items() if name.startswith("blocks"))
    assert blocks["norm"] == pytest.approx(square**0.5, rel=1e-5)
    assert ("te1", "lora_te1_layers") in groups
    assert facts["values"] == sum(value.numel() for value in tensors.values())


def test_i7_hashes_are_checked_against_the_tensors(tmp_path: Path):
    path = write(tmp_path / "a.safetensors", lora(2), {"sshs_model_hash": "a" * 64, "modelspec.hash_sha256": "0xb"})
    info = inspect_lora(path)
    assert info.hashes == {"sshs_model_hash": False, "modelspec.hash_sha256": False}
    assert any("sshs_model_hash: is not that of the tensors" in line for line in info.lines())


def test_trigger_words_settings_and_provenance_are_shown(tmp_path: Path):
    told = {
        "modelspec.trigger_phrase": "zog, wump",
        "ss_learning_rate": "1e-4",
        "streamcache.made_from": '{"tool": "x"}',
    }
    info = inspect_lora(write(tmp_path / "a.safetensors", lora(2), told | {"ss_tag_frequency": "{" + "x" * 500}))
    assert info.trigger_words == ["zog", "wump"] and info.made_from == {"tool": "x"}
    lines = list(info.lines())
    assert "Trigger words: zog, wump" in lines and "  ss_learning_rate = 1e-4" in lines
    assert any("(501 characters)" in line for line in lines)


@pytest.mark.parametrize(("name", "told", "partial"), [
    ("a-step00000120", {}, True), ("a", {"streamcache.partial": "step 2 of 9"}, True), ("a-000120", {}, False),
])  # fmt: skip
def test_a_partial_file_is_known_by_its_name_or_metadata(tmp_path: Path, name: str, told: dict, partial: bool):
    info = inspect_lora(write(tmp_path / f"{name}.safetensors", lora(2), told))
    assert info.partial == partial
    assert any(line.startswith("Partial") for line in info.lines()) == partial


def test_i7_damaged_layers_are_problems_and_the_others_are_shown(tmp_path: Path):
    tensors = lora(2) | {f"m{n}.lora_up.weight": torch.full((4, 2), float("nan")) for n in range(20)}
    tensors |= {f"m{n}.lora_down.weight": random(2, 4) for n in range(20)}
    tensors |= {"z.lora_up.weight": random(4, 3), "z.lora_down.weight": random(2, 4)}
    info = inspect_lora(write(tmp_path / "a.safetensors", tensors))
    assert len(info.problems) == 21 and len(info.layers) == 25
    assert "z: found" in info.problems[-1] and "nan or infinite" in info.problems[0]
    assert list(info.lines())[-1] == "and 9 problems more"
    json.dumps(info.to_json(), allow_nan=False)


def test_metadata_that_is_no_json_is_harmless(tmp_path: Path):
    told = {"streamcache.made_from": "[" * 100_000, "modelspec.trigger_phrase": "[" * 100_000}
    info = inspect_lora(write(tmp_path / "a.safetensors", lora(2), told))
    assert info.made_from is None and info.to_json()["made_from"] is None
