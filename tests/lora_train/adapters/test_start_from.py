"""Files to start from: what they contain is used, or the file is refused by name, layer and missing part."""

import random

import pytest
import torch
from torch import nn

from streamcache.errors import TrainError
from streamcache.lora_train.adapters import build_network, lora_file
from streamcache.lora_train.adapters.lokr import Lokr
from streamcache.lora_train.export import to_tensors

from ...support.mutations import mutate
from .other_files import EXPECTED, GOLDEN, Model, opened, pair, settings

CASES = sorted(path.stem for path in GOLDEN.glob("*.safetensors") if path.stem not in ("expected", "training"))


def change_of(adapter, model) -> torch.Tensor:
    """The change of weight, measured on the live layer."""
    module = getattr(model, adapter.name)
    if not adapter.factors.applies_to_output:
        return adapter.factors.weight().detach()
    turned = torch.einsum(
        "knm,kn...->km...", adapter.factors.rotation(), module.weight.unflatten(0, adapter.factors.blocks.shape[:2])
    )
    turned = turned.flatten(0, 1)
    scale = 1 if adapter.factors.rescale is None else adapter.factors.rescale.reshape(-1, *[1] * (turned.ndim - 1))
    return (turned * scale - module.weight).detach()


def rank_of(name: str) -> int:
    return {"oft": 4, "lokr": 1 if "both" in name else 3}.get(name.partition("_")[0], 3)


@pytest.mark.parametrize("case", CASES)
def test_a_file_of_lycoris_changes_weights_as_lycoris_does(case: str) -> None:
    model, file = Model(), lora_file.read_lora(GOLDEN / f"{case}.safetensors")
    name = case.split("_")[1]
    adapter = dict(build_network(model, settings(rank_of(case)), file).items())[name]
    torch.testing.assert_close(change_of(adapter, model), EXPECTED[case], rtol=1e-4, atol=1e-6)
    x = torch.randn(2, 24) if name == "linear" else torch.randn(2, 12, *(1,) * (name == "volume"), 5, 5)
    module = getattr(model, name)
    changed = module(x)
    with torch.no_grad(), build_network(model, settings(rank_of(case)), file).attached(model.adaptable()):
        found = module(x)
    module.weight.data += EXPECTED[case]
    assert not torch.allclose(found, changed, atol=1e-3)
    torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_saved_again_it_stands_for_the_same_change(case: str) -> None:
    model, rank = Model(), rank_of(case)
    network = build_network(model, settings(rank), lora_file.read_lora(GOLDEN / f"{case}.safetensors"))
    again = build_network(model, settings(rank), lora_file.split_lora(to_tensors(network, model, "comfyui")))
    adapter = dict(again.items())[case.split("_")[1]]
    torch.testing.assert_close(change_of(adapter, model), EXPECTED[case], rtol=1e-4, atol=1e-6)
    assert [tuple(p.shape) for p in again.parameters()] == [tuple(p.shape) for p in network.parameters()]


def test_another_rank_is_refused_with_both_numbers() -> None:
    with pytest.raises(TrainError, match="rank = 16: file.safetensors has rank 2; set rank = 2 to continue it"):
        opened(pair("linear"), rank=16)
    with pytest.raises(TrainError, match="has ranks from 2 to 3; set rank = 3"):
        opened(pair("linear") | pair("qkv", 12, 6, 3), rank=4)
    found = opened(pair("linear") | pair("qkv", 12, 6, 3), rank=3)
    assert (found["linear"].factors.rank, found["qkv"].factors.rank) == (2, 3)


def test_j6_another_rank_of_a_group_is_refused_with_both_numbers() -> None:
    file = pair("linear") | pair("qkv", 12, 6, 3)
    message = "group_ranks: qkv gets rank 4, but file.safetensors has rank 3 there; give it that rank"
    with pytest.raises(TrainError, match=message):
        opened(file, rank=2, group_ranks={"qkv": 4})
    assert opened(file, rank=2, group_ranks={"qkv": 3})["qkv"].factors.rank == 3


def test_settings_that_the_file_overrides_are_logged(caplog) -> None:
    opened(pair("linear"), kind="lokr", alpha=1.0)
    opened(pair("linear"), dora=True)
    assert "its layers continue as LoRA, not as LoKr" in caplog.text
    assert "alpha = 1 is for new layers only; the file has 2" in caplog.text
    assert "its layers without DoRA continue without it" in caplog.text
    caplog.clear()
    opened(pair("linear"), alpha=2.0)
    assert not caplog.text


def test_a_rank_limited_by_a_small_layer_is_the_same_rank() -> None:
    assert opened(pair("qkv", 12, 6, 6), rank=8)["qkv"].factors.rank == 6


@pytest.mark.parametrize("kind", ["lora", "loha", "lokr", "oft"])
def test_another_rank_is_refused_although_a_small_layer_looks_the_same(kind: str) -> None:
    """As `conv_out` does: its four channels limit every rank above to 4, and LoKr stores it without a rank."""

    class Wide(Model):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.small = torch.nn.Linear(64, 64), torch.nn.Linear(8, 4)

    def of(rank: int):
        return settings(rank, kind=kind, targets="wide,small", lokr_factor=2)

    own = lora_file.split_lora(build_network(Wide(), of(4)).tensors(), where="file.safetensors")
    with pytest.raises(TrainError, match=r"rank = 8: file.safetensors has .*; set rank = 4 to continue it"):
        build_network(Wide(), of(8), own)
    build_network(Wide(), of(4), own)


@pytest.mark.parametrize("kind", ["loha", "lokr", "oft"])
def test_the_own_file_of_every_kind_continues_with_the_same_rank(kind: str) -> None:
    model = Model()
    for rank in (2, 5):
        own = build_network(model, settings(rank, kind=kind, targets="all"))
        build_network(model, settings(rank, kind=kind, targets="all"), lora_file.split_lora(own.tensors()))


def test_the_same_layer_under_two_names_is_refused() -> None:
    with pytest.raises(TrainError, match='"lora_unet_linear" and "diffusion_model.linear" are the same layer'):
        opened(pair("lora_unet_linear") | pair("diffusion_model.linear"))
    with pytest.raises(TrainError, match="linear: found two tensors for lora_up.weight"):
        opened(pair("linear") | {"linear.lora_B.default.weight": torch.randn(16, 2)})


@pytest.mark.parametrize("parts", [("diff",), ("diff_b",), ("diff", "diff_b")])
def test_a_target_of_which_the_file_has_only_a_difference_is_trained(parts) -> None:
    tensors = {"linear.diff": torch.randn(16, 24), "linear.diff_b": torch.randn(16)}
    model, file = Model(), lora_file.split_lora({f"linear.{part}": tensors[f"linear.{part}"] for part in parts})
    network = build_network(model, settings(2), file)
    adapter = dict(network.items())["linear"]
    assert adapter.factors is not None and adapter.factors.up.requires_grad
    with torch.no_grad():
        adapter.factors.up += torch.randn(16, 2)
    change = adapter.factors.weight().detach() + tensors["linear.diff"] * ("diff" in parts)
    saved = to_tensors(network, model, "comfyui")
    x = torch.randn(3, 24)
    with network.attached(model.adaptable()), torch.no_grad():
        found = model.linear(x)
    expected = model.linear(x) + x @ change.T + tensors["linear.diff_b"] * ("diff_b" in parts)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    if "diff" in parts:  # ComfyUI applies either a LoRA or a difference to a weight
        torch.testing.assert_close(saved["diffusion_model.linear.diff"], change)
        assert not any("lora" in key for key in saved)
    else:
        assert {key.removeprefix("diffusion_model.linear.") for key in saved} == {
            "alpha", "diff_b", "lora_down.weight", "lora_up.weight",
        }  # fmt: skip


@pytest.mark.parametrize("changes", [{"dora": True}, {"kind": "oft"}])
def test_dora_and_oft_on_top_of_a_difference_are_refused(changes) -> None:
    with pytest.raises(TrainError, match="linear: the file has a full weight difference.*cannot be trained on top"):
        opened({"linear.diff": torch.randn(16, 24)}, **changes)


@pytest.mark.parametrize("axis", ["input", "output"])
def test_dora_of_a_file_works_on_grouped_convolutions(axis: str) -> None:
    model = Model()
    model.image = nn.Conv2d(12, 16, 3, padding=1, groups=4)
    up, down = torch.randn(16, 2, 1, 1), torch.randn(2, 3, 3, 3)
    shape = (1, 3, 1, 1) if axis == "input" else (16, 1, 1, 1)
    scale = 1 + torch.rand(shape)
    tensors = {"image.lora_up.weight": up, "image.lora_down.weight": down, "image.dora_scale": scale}
    network = build_network(model, settings(2), lora_file.split_lora(tensors))
    x = torch.randn(2, 12, 5, 5)
    with network.attached(model.adaptable()):
        found = model.image(x)
    weight = model.image.weight + (up.flatten(1) @ down.flatten(1)).reshape(16, 3, 3, 3)
    over = (0, 2, 3) if axis == "input" else (1, 2, 3)
    weight = scale * weight / weight.square().sum(over, keepdim=True).sqrt()
    expected = nn.functional.conv2d(x, weight, model.image.bias, padding=1, groups=4)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_whole_lokr_of_any_convolution_is_the_product_that_comfyui_computes(dims: int) -> None:
    """ComfyUI multiplies w1 with w2, both as matrices or for 2-D kernels, and reshapes the product."""
    model, kernel = Model(), (3, 1, 2)[:dims]
    model.image = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](12, 16, kernel)
    network = build_network(model, settings(64, kind="lokr", targets="image"))
    with torch.no_grad():
        for value in network.parameters():
            value += torch.randn(value.shape)
    saved = to_tensors(network, model, "comfyui")
    w1, w2 = (saved[f"diffusion_model.image.lokr_w{side}"] for side in (1, 2))
    w1 = w1[:, :, None, None] if w2.ndim == 4 else w1
    factors = dict(network.items())["image"].factors
    assert isinstance(factors, Lokr)
    torch.testing.assert_close(torch.kron(w1, w2).reshape(16, 12, *kernel), factors.weight().detach())


PARTS = {
    "LoRA": {"lora_up.weight": (16, 2), "lora_down.weight": (2, 24)},
    "LoHa": {"hada_w1_a": (16, 2), "hada_w1_b": (2, 24), "hada_w2_a": (16, 2), "hada_w2_b": (2, 24)},
    "LoKr": {"lokr_w1_a": (4, 2), "lokr_w1_b": (2, 4), "lokr_w2_a": (4, 2), "lokr_w2_b": (2, 6)},
    "OFT": {"oft_blocks": (8, 2, 2), "rescale": (16, 1)},
}


@pytest.mark.parametrize(
    ("kind", "missing"), [(kind, part) for kind, parts in PARTS.items() for part in parts if part != "rescale"]
)
def test_an_incomplete_file_is_refused_by_file_layer_and_missing_part(kind: str, missing: str) -> None:
    tensors = {f"linear.{part}": torch.randn(shape) for part, shape in PARTS[kind].items() if part != missing}
    with pytest.raises(
        TrainError, match=rf"file.safetensors: linear: incomplete {kind}: {missing} missing, found only"
    ):
        opened(tensors)


@pytest.mark.parametrize("lonely", ["alpha", "dora_scale", "lora_bias", "lora_mid.weight", "hada_t1", "lokr_t2"])
def test_a_part_that_needs_others_is_refused_alone(lonely: str) -> None:
    key = "linear.lora_B.bias" if lonely == "lora_bias" else f"linear.{lonely}"
    with pytest.raises(TrainError, match="file.safetensors: linear: incomplete .* missing, found only"):
        opened({key: torch.randn(1)})


def test_parts_of_two_kinds_in_one_layer_are_refused() -> None:
    tensors = {f"linear.{part}": torch.randn(shape) for kind in ("LoRA", "OFT") for part, shape in PARTS[kind].items()}
    with pytest.raises(TrainError, match="linear: found parts of LoRA and OFT; expected one kind"):
        opened(tensors)


@pytest.mark.parametrize(
    ("key", "shape", "words"),
    [
        ("linear.a1.weight", (2, 2), "a GLoRA file .*only LoRA, LoHa, LoKr, OFT files can be continued"),
        ("linear.oft_blocks", (2, 8, 2, 2), "linear: a BOFT file"),
        ("linear.on_input", (1,), r"a \(IA\)³ file"),
        (
            "model.diffusion_model.linear.weight",
            (16, 24),
            'not a LoRA file: its first key is "model.diffusion_model.linear.weight"',
        ),
    ],
)
def test_files_of_other_kinds_are_refused_as_what_they_are(key: str, shape, words: str) -> None:
    with pytest.raises(TrainError, match=words):
        opened({key: torch.randn(shape)})


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(TrainError, match="not a LoRA file: it is empty"):
        opened({})


SHAPES = (
    (),
    (0,),
    (1,),
    (2,),
    (16,),
    (24,),
    (0, 24),
    (2, 24),
    (16, 2),
    (16, 24),
    (2, 24, 1, 1),
    (4, 6),
    (4, 4),
    (8, 2, 2),
    (2, 2, 1, 1, 3),
)
DTYPES = (torch.float32, torch.float16, torch.float64, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn)
OTHERS = "alpha diff diff_b dora_scale lora_B.bias lora_mid.weight hada_t1 hada_t2 lokr_w1 lokr_w2 lokr_t2 a1.weight"
PIECES = sorted({part for parts in PARTS.values() for part in parts} | set(OTHERS.split()))


def test_files_of_any_content_give_a_network_or_a_train_error() -> None:
    """Random parts of random shapes and dtypes, on plain and split layers, with and without a configuration."""
    model, draw, built = Model(), random.Random(4), 0
    for _ in range(1500):
        tensors: dict[str, torch.Tensor] = {}
        for prefix in draw.sample(
            ["linear", "transformer.to_q", "transformer.swapped", "image"], draw.choice((1, 1, 2))
        ):
            known = draw.choice(list(PARTS.values())) if prefix == "linear" else {}
            for part, shape in known.items():
                tensors[f"{prefix}.{part}"] = torch.rand(shape)
            for part in draw.sample(PIECES, draw.choice((0, 1, 2, 3))):
                shape = draw.choice(SHAPES)
                tensors[f"{prefix}.{part}"] = torch.zeros(shape).to(
                    draw.choice(DTYPES) if draw.random() < 0.2 else torch.float32
                )
        metadata = draw.choice(
            ({}, {}, {"lora_adapter_metadata": draw.choice(('{"lora_alpha": 2}', "[1]", '{"lora_alpha": []}'))})
        )
        try:
            network = build_network(model, settings(2), lora_file.split_lora(tensors, metadata))
        except TrainError:
            continue
        built += 1
        with network.attached(model.adaptable()):
            model.linear(torch.randn(2, 24)).sum().backward()
        to_tensors(network, model, "comfyui")
    assert built > 50


@pytest.mark.parametrize("case", ["lokr_image_tucker", "oft_linear_rescaled", "loha_linear"])
def test_a_damaged_file_gives_a_network_or_a_train_error(tmp_path, case: str) -> None:
    draw, path, model = random.Random(case), tmp_path / "lora.safetensors", Model()
    content = (GOLDEN / f"{case}.safetensors").read_bytes()
    for _ in range(400):
        path.write_bytes(content)
        mutate(path, draw)
        try:
            build_network(model, settings(rank_of(case)), lora_file.read_lora(path))
        except TrainError as error:
            assert "lora.safetensors" in str(error)
