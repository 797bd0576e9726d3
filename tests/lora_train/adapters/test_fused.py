"""Files that split a layer which the model has fused: joined with the same change of weight, or refused."""

import pytest
import torch

from streamcache.errors import TrainError
from streamcache.lora_train.adapters import build_network, lora_file
from streamcache.lora_train.export import to_tensors

from .other_files import Model, opened, pair, settings


def split_file(ranks=(2, 2, 2), alphas=(None, None, None)) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for name, rank, alpha in zip(("to_q", "to_k", "to_v"), ranks, alphas):
        tensors |= pair(f"transformer.{name}", 4, 6, rank)
        if alpha is not None:
            tensors[f"transformer.{name}.alpha"] = torch.tensor(alpha)
    return tensors


def split_change(tensors) -> torch.Tensor:
    rows = []
    for name in ("to_q", "to_k", "to_v"):
        up, down = (tensors[f"transformer.{name}.lora_{side}.weight"] for side in ("up", "down"))
        rows.append(float(tensors.get(f"transformer.{name}.alpha", len(down))) / len(down) * up @ down)
    return torch.cat(rows)


@pytest.mark.parametrize(
    ("ranks", "alphas"), [((2, 2, 2), (None,) * 3), ((2, 2, 2), (1.0, 1.0, 1.0)), ((2, 3, 1), (0.5, None, 4.0))]
)
def test_split_projections_are_joined_into_the_fused_layer(ranks, alphas) -> None:
    tensors = split_file(ranks, alphas)
    model = Model()
    file = lora_file.split_lora(tensors, where="file.safetensors")
    network = build_network(model, settings(2, targets="qkv"), file)
    adapter = dict(network.items())["qkv"]
    torch.testing.assert_close(adapter.factors.weight().detach(), split_change(tensors), rtol=1e-5, atol=1e-6)
    assert adapter.factors.rank == sum(ranks) and not network.carried
    assert {key.rpartition("qkv")[0] for key in to_tensors(network, model, "comfyui")} == {"diffusion_model."}


def test_a_part_alone_changes_only_its_rows() -> None:
    tensors = pair("transformer.to_k", 4, 6)
    weight = opened(tensors)["qkv"].factors.weight().detach()
    torch.testing.assert_close(
        weight[4:8], tensors["transformer.to_k.lora_up.weight"] @ tensors["transformer.to_k.lora_down.weight"]
    )
    assert not weight[:4].any() and not weight[8:].any()


def test_rows_in_another_order_are_put_in_place() -> None:
    tensors = pair("transformer.swapped", 12, 6)
    weight = opened(tensors)["qkv"].factors.weight().detach()
    change = tensors["transformer.swapped.lora_up.weight"] @ tensors["transformer.swapped.lora_down.weight"]
    torch.testing.assert_close(weight, torch.cat([change[6:], change[:6]]))


def test_a_whole_layer_and_its_parts_add_up() -> None:
    tensors = split_file() | pair("diffusion_model.qkv", 12, 6)
    whole = tensors["diffusion_model.qkv.lora_up.weight"] @ tensors["diffusion_model.qkv.lora_down.weight"]
    weight = opened(tensors)["qkv"].factors.weight().detach()
    torch.testing.assert_close(weight, split_change(tensors) + whole, rtol=1e-5, atol=1e-6)


def test_split_differences_are_put_into_the_fused_layer() -> None:
    diff, bias = torch.randn(4, 6), torch.randn(4)
    adapter = opened({"transformer.to_v.diff": diff, "transformer.to_v.diff_b": bias})["qkv"]
    assert torch.equal(adapter.diff[8:], diff) and not adapter.diff[:8].any()
    assert torch.equal(adapter.diff_b[8:], bias) and not adapter.diff_b[:8].any()


@pytest.mark.parametrize(
    "parts",
    [
        {"lokr_w1": (2, 2), "lokr_w2": (2, 3)},
        {"lora_up.weight": (4, 2), "lora_down.weight": (2, 6), "dora_scale": (4, 1)},
    ],
)
def test_split_parts_that_cannot_be_joined_are_refused_with_the_reason(parts) -> None:
    tensors = {f"transformer.to_q.{part}": torch.randn(shape) for part, shape in parts.items()}
    with pytest.raises(
        TrainError, match=r"qkv: one layer in this model, split in the file \(transformer.to_q\).*cannot be joined"
    ):
        opened(tensors)
