"""Resizing: at full rank the same change, below it the nearest one, with the energy that is kept."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from streamcache.errors import TrainError
from streamcache.lora_train import RankRule, inspect_lora, resize_lora

from ..adapters.other_files import EXPECTED, GOLDEN
from .lora_files import changes, close, lora, random, spell, write


def read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    with safe_open(path, "pt") as file:
        return load_file(path), dict(file.metadata())


@pytest.mark.parametrize("naming", ["kohya", "comfyui", "diffusers"])
def test_i7_resize_at_full_rank_equals_the_original(tmp_path: Path, naming: str):
    tensors = lora(rank=6, naming=naming)
    source = write(tmp_path / "a.safetensors", tensors)
    report = resize_lora(source, tmp_path / "b.safetensors", RankRule(6))
    made, _ = read(tmp_path / "b.safetensors")
    close(changes(made), changes(tensors))
    assert report.kept == 1 and all(layer.rank == 6 for layer in report.layers)


def test_i7_resize_at_full_rank_through_the_singular_values_equals_the_original(tmp_path: Path):
    """A rule computes them; that of a rank that is large enough does not need to."""
    tensors = lora(rank=6)
    source = write(tmp_path / "a.safetensors", tensors)
    report = resize_lora(source, tmp_path / "b.safetensors", RankRule(6, rule="sv_ratio", target=1e9))
    close(changes(read(tmp_path / "b.safetensors")[0]), changes(tensors))
    assert report.kept == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("naming", ["kohya", "comfyui", "diffusers"])
def test_i7_resize_is_the_best_change_of_its_rank_and_says_what_it_keeps(tmp_path: Path, naming: str):
    tensors = lora(rank=8, alpha=4.0, naming=naming)
    source = write(tmp_path / "a.safetensors", tensors)
    report = resize_lora(source, tmp_path / "b.safetensors", RankRule(3))
    found, expected = changes(read(tmp_path / "b.safetensors")[0]), {}
    kept, total = 0.0, 0.0
    for name, change in changes(tensors).items():
        u, values, v = torch.linalg.svd(change, full_matrices=False)
        expected[name] = u[:, :3] * values[:3] @ v[:3]
        kept, total = kept + float(values[:3].square().sum()), total + float(values.square().sum())
    close(found, expected, 1e-5)
    assert report.kept == pytest.approx(kept / total, rel=1e-5) and report.kept < 1


def test_i7_the_scale_of_each_layer_stays_and_alpha_follows_the_rank(tmp_path: Path):
    source = write(tmp_path / "a.safetensors", lora(rank=8, alpha=4.0))
    resize_lora(source, tmp_path / "b.safetensors", RankRule(2))
    made, metadata = read(tmp_path / "b.safetensors")
    assert {float(value) for key, value in made.items() if key.endswith(".alpha")} == {1.0}
    assert (metadata["ss_network_dim"], metadata["ss_network_alpha"]) == ("2", "1.0")


def test_i7_convolutions_keep_their_kernel(tmp_path: Path):
    source = write(tmp_path / "a.safetensors", lora(rank=8))
    resize_lora(source, tmp_path / "b.safetensors", RankRule(4, conv_rank=2))
    made, metadata = read(tmp_path / "b.safetensors")
    assert made["lora_unet_blocks_2_conv.lora_down.weight"].shape == (2, 10, 3, 3)
    assert made["lora_unet_blocks_2_conv.lora_up.weight"].shape == (12, 2, 1, 1)
    assert made["lora_unet_blocks_0_mlp_fc1.lora_down.weight"].shape == (4, 24)
    assert metadata["ss_network_dim"] == "Dynamic"


def test_i7_loha_lokr_and_full_differences_become_loras(tmp_path: Path):
    a, b, c, d = random(24, 3), random(3, 20, seed=1), random(24, 3, seed=2), random(3, 20, seed=3)
    small, large, full = random(4, 5, seed=4), random(6, 4, seed=5), random(12, 9, seed=6)
    tensors = {f"m.hada_w{name}": value for name, value in {"1_a": a, "1_b": b, "2_a": c, "2_b": d}.items()}
    tensors |= {"n.lokr_w1": small, "n.lokr_w2": large, "o.diff": full, "o.diff_b": random(12), "p.diff": random(7)}
    source = write(tmp_path / "a.safetensors", tensors, {"ss_network_module": "lycoris.kohya"})
    report = resize_lora(source, tmp_path / "b.safetensors", RankRule(64))
    made, metadata = read(tmp_path / "b.safetensors")
    expected = {"m": (a @ b) * (c @ d), "n": torch.kron(small, large), "o": full}
    close(changes(made), {name: change.double() for name, change in expected.items()}, 1e-5)
    assert torch.equal(made["o.diff_b"], random(12)) and torch.equal(made["p.diff"], random(7))
    assert report.kept == pytest.approx(1) and metadata["ss_network_module"] == "networks.lora"
    assert "Converted to LoRA: 1 layer of LoKr" in report.lines()


@pytest.mark.parametrize("case", [case for case in EXPECTED if case.startswith(("lora_", "loha_", "lokr_"))])
def test_i7_files_of_lycoris_at_full_rank_change_what_lycoris_computed(tmp_path: Path, case: str):
    resize_lora(GOLDEN / f"{case}.safetensors", tmp_path / "b.safetensors", RankRule(999))
    (change,) = changes(read(tmp_path / "b.safetensors")[0]).values()
    torch.testing.assert_close(change.float(), EXPECTED[case].flatten(1), rtol=1e-4, atol=1e-6)


def test_i7_a_file_of_peft_at_full_rank_changes_what_peft_computed(tmp_path: Path):
    """Its alphas are in the configuration beside it."""
    resize_lora(GOLDEN / "peft" / "adapter_model.safetensors", tmp_path / "b.safetensors", RankRule(999))
    made = changes(read(tmp_path / "b.safetensors")[0])
    assert len(made) == 2
    for name, change in made.items():
        expected = EXPECTED[f"peft.{name.rpartition('_')[2]}"]
        torch.testing.assert_close(change.float(), expected.flatten(1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("tensors", "kind"),
    [
        ({"m.lora_up.weight": random(4, 2), "m.lora_down.weight": random(2, 4), "m.dora_scale": random(4, 1)}, "DoRA"),
        ({"m.oft_blocks": random(2, 2, 2)}, "OFT"),
        ({"m.oft_blocks": random(2, 2, 2, 2)}, "BOFT"),
        ({"m.a1.weight": random(2, 4), "m.b1.weight": random(2, 4)}, "GLoRA"),
        ({"m.lokr_w1": random(2, 2), "m.lokr_w2": random(2, 2), "m.dora_scale": random(4, 1)}, "LoKr with DoRA"),
        ({"m.on_input": random(2), "m.weight": random(2)}, "(IA)³"),
    ],
)
def test_i7_kinds_that_depend_on_the_base_are_refused_by_name(tmp_path: Path, tensors: dict, kind: str):
    source = write(tmp_path / "a.safetensors", lora() | tensors)
    with pytest.raises(TrainError) as refused:
        resize_lora(source, tmp_path / "b.safetensors", RankRule(2))
    assert f"m is a {kind}, whose change depends on the base model's weights" in str(refused.value)
    assert not (tmp_path / "b.safetensors").exists()


def test_the_metadata_tells_where_it_comes_from_and_keeps_what_is_still_true(tmp_path: Path):
    told = {"ss_output_name": "a", "ss_seed": "7", "ss_network_dim": "8", "sshs_model_hash": "0" * 64, "other": "x"}
    source = write(tmp_path / "a.safetensors", lora(rank=8), {**told, "lora_adapter_metadata": '{"lora_alpha": 8}'})
    report = resize_lora(source, tmp_path / "b.safetensors", RankRule(2))
    resize_lora(tmp_path / "b.safetensors", tmp_path / "c.safetensors", RankRule(1))
    metadata = read(tmp_path / "b.safetensors")[1]
    assert (metadata["ss_seed"], metadata["other"], metadata["ss_output_name"]) == ("7", "x", "b")
    assert "lora_adapter_metadata" not in metadata
    made = json.loads(metadata["streamcache.made_from"])
    assert (made["tool"], made["rank"], made["sources"][0]["file"]) == ("resize", "2", "a.safetensors")
    assert made["kept_energy"] == pytest.approx(report.kept, abs=1e-6)
    again = inspect_lora(tmp_path / "c.safetensors")
    assert again.made_from["sources"][0]["made_from"] == made
    assert again.hashes == {"sshs_model_hash": True, "modelspec.hash_sha256": True}


@pytest.mark.parametrize("dtype", [None, "fp32", "bf16", "fp16"])
def test_the_number_type_is_that_of_the_source_or_the_chosen_one(tmp_path: Path, dtype: str | None):
    tensors = {key: value.bfloat16() for key, value in lora(rank=8).items()}
    resize_lora(write(tmp_path / "a.safetensors", tensors), tmp_path / "b.safetensors", RankRule(8), dtype)
    wanted = {"fp32": torch.float32, "fp16": torch.float16}.get(dtype or "", torch.bfloat16)
    made = read(tmp_path / "b.safetensors")[0]
    assert {value.dtype for key, value in made.items() if not key.endswith("alpha")} == {wanted}
    close(changes(made), changes(tensors), {torch.float32: 2e-6, torch.float16: 2e-3}.get(wanted, 1e-2))


def test_peft_alphas_are_applied(tmp_path: Path):
    tensors = lora(rank=4, naming="diffusers")
    config = json.dumps({"transformer.lora_alpha": 8, "transformer.r": 4})
    source = write(tmp_path / "a.safetensors", tensors, {"lora_adapter_metadata": config})
    resize_lora(source, tmp_path / "b.safetensors", RankRule(4))
    close(changes(read(tmp_path / "b.safetensors")[0]), {name: 2 * c for name, c in changes(tensors).items()})


def test_a_file_that_exists_is_replaced_only_if_asked(tmp_path: Path):
    source = write(tmp_path / "a.safetensors", lora(rank=4))
    before = source.read_bytes()
    with pytest.raises(TrainError, match="exists; give another name, or --overwrite"):
        resize_lora(source, source, RankRule(2))
    assert source.read_bytes() == before
    resize_lora(source, source, RankRule(2), overwrite=True)
    assert inspect_lora(source).to_json()["ranks"] == {"2": 4}


def test_values_that_fp16_lacks_are_refused(tmp_path: Path):
    tensors = {f"{spell('kohya', 'x')}.diff": torch.full((4, 4), 1e12)}
    with pytest.raises(TrainError, match="does not fit into torch.float16; choose fp32 or bf16"):
        resize_lora(write(tmp_path / "a.safetensors", tensors), tmp_path / "b.safetensors", RankRule(2), "fp16")
