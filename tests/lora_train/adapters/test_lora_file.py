"""LoRA files of every usual naming, continued with their own alpha and further parts."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from streamcache.errors import TrainError
from streamcache.lora_train.adapters import AdapterSettings, build_network, lora_file

from ...support.odd_files import KINDS, put_odd, returns


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self.blocks = nn.ModuleList([nn.ModuleDict({"to_q": nn.Linear(8, 6)})])
        self.conv_in = nn.Conv2d(3, 8, 3, padding=1)

    def adaptable(self):
        return {"conv_in": self.conv_in, "blocks.0.to_q": self.blocks[0]["to_q"]}

    def groups(self):
        return {"attention": ["blocks.0.to_q"], "all": list(self.adaptable())}

    def export_names(self, naming):
        names = self.adaptable()
        if naming == "kohya":
            return {name: "lora_unet_" + name.replace(".", "_") for name in names}
        return {name: {"comfyui": "diffusion_model.", "diffusers": "transformer."}[naming] + name for name in names}


UP, DOWN = torch.randn(6, 2), torch.randn(2, 8)
Q = "blocks.0.to_q"
SETTINGS = AdapterSettings(rank=2, targets="attention")


def continued(tensors, settings=SETTINGS, metadata=None):
    toy = Toy()
    return dict(build_network(toy, settings, lora_file.split_lora(tensors, metadata)).items())


@pytest.mark.parametrize(
    "up, down",
    [
        ("diffusion_model.blocks.0.to_q.lora_up.weight", "diffusion_model.blocks.0.to_q.lora_down.weight"),
        ("diffusion_model.blocks.0.to_q.lora_B.weight", "diffusion_model.blocks.0.to_q.lora_A.weight"),
        ("lora_unet_blocks_0_to_q.lora_up.weight", "lora_unet_blocks_0_to_q.lora_down.weight"),
        ("lycoris_blocks_0_to_q.lora_up.weight", "lycoris_blocks_0_to_q.lora_down.weight"),
        ("transformer.blocks.0.to_q.lora_B.weight", "transformer.blocks.0.to_q.lora_A.weight"),
        ("unet.blocks.0.to_q.lora.up.weight", "unet.blocks.0.to_q.lora.down.weight"),
        ("unet.blocks.0.processor.to_q_lora.up.weight", "unet.blocks.0.processor.to_q_lora.down.weight"),
        (
            "base_model.model.blocks.0.to_q.lora_B.default.weight",
            "base_model.model.blocks.0.to_q.lora_A.default.weight",
        ),
        ("blocks.0.to_q.lora_linear_layer.up.weight", "blocks.0.to_q.lora_linear_layer.down.weight"),
        ("blocks.0.to_q.lora_B", "blocks.0.to_q.lora_A"),
    ],
)
def test_defect_5_every_usual_naming_is_understood(up, down):
    adapter = continued({up: UP, down: DOWN})[Q]
    assert torch.equal(adapter.factors.up, UP) and torch.equal(adapter.factors.down, DOWN)
    assert adapter.factors.scale == 1.0  # without an alpha, files mean alpha = rank


def test_defect_5_alpha_and_rank_of_the_file_are_kept():
    prefix = f"diffusion_model.{Q}"
    file = {f"{prefix}.lora_up.weight": UP, f"{prefix}.lora_down.weight": DOWN, f"{prefix}.alpha": torch.tensor(0.5)}
    factors = continued(file)[Q].factors
    assert (factors.rank, factors.alpha, factors.scale) == (2, 0.5, 0.25)


def test_defect_5_diff_and_diff_b_stay_active_fixed_and_saved():
    diff, bias = torch.randn(6, 8), torch.randn(6)
    toy = Toy()
    file = lora_file.split_lora({f"diffusion_model.{Q}.diff": diff, f"diffusion_model.{Q}.diff_b": bias})
    network = build_network(toy, AdapterSettings(rank=2, targets="conv_in"), file)
    module, x = toy.adaptable()[Q], torch.randn(3, 8)
    with network.attached(toy.adaptable()):
        found = module(x)
    torch.testing.assert_close(found, module(x) + x @ diff.T + bias)
    assert torch.equal(network.tensors()[f"{Q}.diff"], diff) and torch.equal(network.tensors()[f"{Q}.diff_b"], bias)
    assert not any("diff" in name for name, _ in network.named_parameters())


def test_modules_of_the_file_beyond_the_targets_are_continued_too():
    file = {"diffusion_model.conv_in.lora_up.weight": torch.randn(8, 2, 1, 1)}
    file["diffusion_model.conv_in.lora_down.weight"] = torch.randn(2, 3, 3, 3)
    found = continued(file)
    assert list(found) == ["conv_in", Q] and found["conv_in"].factors.rank == found[Q].factors.rank == 2


def test_a_tucker_lora_equals_its_definition():
    up, down, mid = torch.randn(8, 2, 1, 1), torch.randn(2, 3, 1, 1), torch.randn(2, 2, 3, 3)
    names = {"lora_up.weight": up, "lora_down.weight": down, "lora_mid.weight": mid}
    adapter = continued({f"lora_unet_conv_in.{part}": value for part, value in names.items()})["conv_in"]
    weight = torch.einsum("mnkl,im,nj->ijkl", mid, up[:, :, 0, 0], down[:, :, 0, 0])
    torch.testing.assert_close(adapter.factors.weight(), weight)
    x = torch.randn(1, 3, 5, 5)
    torch.testing.assert_close(adapter.factors(x), nn.functional.conv2d(x, weight, padding=1), rtol=1e-4, atol=1e-5)


def test_the_axis_of_dora_scales_is_derived_from_their_shape():
    pair = {f"{Q}.lora_up.weight": UP, f"{Q}.lora_down.weight": DOWN}
    assert continued(pair | {f"{Q}.dora_scale": torch.rand(1, 8)})[Q].axis == "input"
    assert continued(pair | {f"{Q}.dora_scale": torch.rand(6, 1)})[Q].axis == "output"
    assert continued(pair | {f"{Q}.lora_magnitude_vector.weight": torch.rand(6)})[Q].axis == "output"
    with pytest.raises(TrainError, match=r"dora_scale of \(5,\)"):
        continued(pair | {f"{Q}.dora_scale": torch.rand(5)})


@pytest.mark.parametrize("stabilised, expected", [(False, 4.0), (True, 4.0 * 2**0.5)])
def test_alpha_is_found_in_the_header_that_diffusers_writes(stabilised, expected):
    facts = {"transformer.lora_alpha": 8, "transformer.r": 2, "transformer.use_rslora": stabilised}
    pair = {f"transformer.{Q}.lora_B.weight": UP, f"transformer.{Q}.lora_A.weight": DOWN}
    factors = continued(pair, metadata={"lora_adapter_metadata": json.dumps(facts)})[Q].factors
    assert factors.scale == pytest.approx(expected)


def test_the_bias_of_peft_becomes_a_change_of_bias():
    pair = {f"transformer.{Q}.lora_B.weight": UP, f"transformer.{Q}.lora_A.weight": DOWN}
    bias = torch.randn(6)
    assert torch.equal(continued(pair | {f"transformer.{Q}.lora_B.bias": bias})[Q].diff_b, bias)


def test_half_precision_files_continue_in_float32():
    pair = {f"{Q}.lora_up.weight": UP.half(), f"{Q}.lora_down.weight": DOWN.bfloat16()}
    factors = continued(pair)[Q].factors
    assert factors.up.dtype == factors.down.dtype == torch.float32


def test_a_lora_for_another_model_is_refused_with_a_name_of_each():
    file = {"lora_unet_double_blocks_0_img_attn_qkv.lora_up.weight": UP}
    file["lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight"] = DOWN
    with pytest.raises(
        TrainError, match="another model: this model has none of its 1 modules.*double_blocks_0.*conv_in"
    ):
        continued(file)


def test_a_lora_of_another_width_is_refused_with_both_shapes():
    with pytest.raises(
        TrainError, match=r"to_q: found up \(6, 2\) and down \(2, 9\), expected \(6, rank\) and \(rank, 8\)"
    ):
        continued({f"{Q}.lora_up.weight": UP, f"{Q}.lora_down.weight": torch.randn(2, 9)})


@pytest.mark.parametrize("part, shape", [("diff", (6, 9)), ("diff_b", (7,))])
def test_a_diff_of_another_width_is_refused(part, shape):
    with pytest.raises(TrainError, match="another model"):
        continued({f"{Q}.{part}": torch.zeros(shape)})


def test_a_loha_and_a_lokr_of_another_width_are_refused():
    loha = {"hada_w1_a": (6, 2), "hada_w1_b": (2, 9), "hada_w2_a": (6, 2), "hada_w2_b": (2, 9)}
    lokr = {"lokr_w1": (2, 2), "lokr_w2": (3, 5)}
    for parts in (loha, lokr):
        with pytest.raises(TrainError, match="another model"):
            continued({f"{Q}.{part}": torch.zeros(shape) for part, shape in parts.items()})


def test_an_up_without_its_down_is_refused():
    with pytest.raises(TrainError, match="incomplete LoRA: lora_down.weight missing, found only lora_up.weight"):
        continued({f"{Q}.lora_up.weight": UP})


def test_tensors_without_a_matching_module_are_kept_and_reported(caplog):
    text = {
        "lora_te_layers_0_mlp.lora_up.weight": UP,
        "lora_te_layers_0_mlp.lora_down.weight": DOWN,
        "note": torch.ones(1),
    }
    file = lora_file.split_lora(text | {f"{Q}.lora_up.weight": UP, f"{Q}.lora_down.weight": DOWN})
    network = build_network(Toy(), SETTINGS, file)
    assert set(network.carried) == set(text) and "3 tensors belong to no module" in caplog.text


@pytest.mark.parametrize("content", [b"", b"not a safetensors file at all"])
def test_an_unreadable_lora_file_is_refused_with_its_path(tmp_path, content):
    path = tmp_path / "odd.safetensors"
    path.write_bytes(content)
    with pytest.raises(TrainError, match="odd.safetensors: cannot be read"):
        lora_file.read_lora(path)
    with pytest.raises(TrainError, match="missing.safetensors: cannot be read"):
        lora_file.read_lora(tmp_path / "missing.safetensors")


def test_defect_5_any_file_name_is_accepted(tmp_path):
    path = tmp_path / "häuser (final) v2.safetensors"
    save_file({f"{Q}.lora_up.weight": UP, f"{Q}.lora_down.weight": DOWN}, path, {"made": "here"})
    file = lora_file.read_lora(path)
    assert list(file.modules) == [Q] and file.metadata == {"made": "here"}


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and sockets")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_file_is_refused_and_not_waited_for(tmp_path, kind: str) -> None:
    put_odd(kind, tmp_path / "a.safetensors")
    with pytest.raises(TrainError, match="not a file"):
        returns(lambda: lora_file.read_lora(tmp_path / "a.safetensors"))
