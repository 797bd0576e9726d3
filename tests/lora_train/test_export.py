"""Export: the saved file is the live adapter, in every naming, with metadata that other tools read."""

import hashlib
import json
import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from streamcache.errors import TrainError
from streamcache.lora_train import export
from streamcache.lora_train.adapters import AdapterSettings, build_network, lora_file
from streamcache.lora_train.denoiser import LayerRows
from streamcache.lora_train.objective.noise_schedule import DiffusionSchedule, FlowSchedule, scaled_linear_alphas

from ..support.small_parts import SmallDenoiser, make_dataset, run_training

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))


class Toy(nn.Module):
    """A linear layer and a convolution, with a denoiser's names for them."""

    architecture = "toy"

    def __init__(self) -> None:
        super().__init__()
        self.device, self.schedule = torch.device("cpu"), FlowSchedule()
        self.conv_in = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList([nn.ModuleDict({"to_q": nn.Linear(8, 6)})])

    def forward(self, x):
        return self.blocks[0]["to_q"](self.conv_in(x).movedim(1, -1))

    def adaptable(self):
        return {"conv_in": self.conv_in, "blocks.0.to_q": self.blocks[0]["to_q"]}

    def groups(self):
        return {"attention": ["blocks.0.to_q"], "all": list(self.adaptable())}

    def export_names(self, naming):
        names = self.adaptable()
        if naming == "kohya":
            return {name: "lora_unet_" + name.replace(".", "_") for name in names}
        return {name: {"comfyui": "diffusion_model.", "diffusers": "transformer."}[naming] + name for name in names}


@pytest.fixture
def toy():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Toy().requires_grad_(False)


def trained(toy, **changes):
    network = build_network(toy, AdapterSettings(**{"rank": 2, "alpha": 1.0, "targets": "all", **changes}))
    made = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=made) * 0.3)
    return network


def output(toy, network):
    with network.attached(toy.adaptable()):
        return toy(X)


FACTS = {"dataset_id": "d-1", "steps": 20, "seed": 7, "learning_rate": 1e-4, "text_encoder_lr": None}


def saved(path, toy, network, naming="comfyui", dtype=None):
    metadata = export.describe(network, toy, "my_lora", 1_700_000_000.0, FACTS)
    return export.save(path, export.to_tensors(network, toy, naming, dtype), metadata)


@pytest.mark.parametrize("naming", export.NAMINGS)
@pytest.mark.parametrize("changes", [{}, {"kind": "loha"}, {"kind": "lokr"}, {"dora": True}, {"rank_stabilised": True}])
def test_save_then_load_gives_the_live_adapters_output(tmp_path, toy, naming, changes):
    if changes.get("dora"):
        changes = changes | {"dora_axis": export.dora_axis(naming)}
    network = trained(toy, **changes)
    path = saved(tmp_path / "out" / "x.safetensors", toy, network, naming)
    again = build_network(toy, AdapterSettings(rank=2, targets="all"), lora_file.read_lora(path))
    exact = {"rtol": 1e-5, "atol": 1e-6} if naming == "diffusers" else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(output(toy, again), output(toy, network), **exact)


def test_the_keys_are_those_that_readers_of_each_naming_know(toy):
    keys = {naming: set(export.to_tensors(trained(toy), toy, naming)) for naming in export.NAMINGS}
    parts = ("alpha", "lora_down.weight", "lora_up.weight")
    modules = "conv_in", "blocks.0.to_q"
    assert keys["comfyui"] == {f"diffusion_model.{name}.{part}" for name in modules for part in parts}
    assert keys["kohya"] == {f"lora_unet_{n}.{part}" for n in ("conv_in", "blocks_0_to_q") for part in parts}
    assert keys["diffusers"] == {f"transformer.{name}.lora_{part}.weight" for name in modules for part in "AB"}


def test_convolutions_are_saved_with_the_shape_that_readers_expect(toy):
    tensors = export.to_tensors(trained(toy), toy, "kohya")
    assert tensors["lora_unet_conv_in.lora_up.weight"].shape == (8, 2, 1, 1)
    assert tensors["lora_unet_conv_in.lora_down.weight"].shape == (2, 3, 3, 3)


def test_a_reader_that_divides_alpha_by_rank_gets_the_stabilised_scale(toy):
    network = trained(toy, rank=4, rank_stabilised=True)
    alpha = export.to_tensors(network, toy, "comfyui")["diffusion_model.blocks.0.to_q.alpha"]
    assert alpha.item() / 4 == pytest.approx(1.0 / 4**0.5)


def test_half_precision_is_for_the_matrices_alpha_stays_exact(toy):
    tensors = export.to_tensors(trained(toy, alpha=1.37), toy, "comfyui", torch.bfloat16)
    dtypes = {key.rpartition(".")[2]: value.dtype for key, value in tensors.items()}
    assert dtypes == {"weight": torch.bfloat16, "alpha": torch.float32}


def test_defect_12_the_metadata_records_model_dataset_and_settings(tmp_path, toy):
    network = trained(toy, dora=True)
    with safe_open(saved(tmp_path / "x.safetensors", toy, network), "pt") as file:
        found = file.metadata()
    assert found["ss_dataset_id"] == "d-1" and found["ss_steps"] == "20" and found["ss_seed"] == "7"
    assert found["ss_network_dim"] == "2" and found["ss_network_alpha"] == "1.0" and "ss_text_encoder_lr" not in found
    assert found["ss_network_module"] == "networks.lora" and json.loads(found["ss_network_args"])["dora"] is True
    assert found["modelspec.architecture"] == "toy/lora" and found["modelspec.title"] == "my_lora"
    assert found["modelspec.date"] == "2023-11-14T22:13:20+00:00" and found["modelspec.prediction_type"] == "flow"


def test_the_hash_is_that_of_the_tensors_whatever_the_metadata(tmp_path, toy):
    tensors = export.to_tensors(trained(toy), toy, "comfyui")
    hashes = []
    for title in ("short", "a much longer title"):
        path = export.save(tmp_path / f"{title}.safetensors", tensors, {"modelspec.title": title})
        content = path.read_bytes()
        data = content[8 + int.from_bytes(content[:8], "little") :]
        with safe_open(path, "pt") as file:
            found = file.metadata()
        assert found["sshs_model_hash"] == hashlib.sha256(data).hexdigest()
        assert found["modelspec.hash_sha256"] == "0x" + found["sshs_model_hash"]
        hashes.append((found["sshs_model_hash"], found["sshs_legacy_hash"]))
    assert hashes[0] == hashes[1]


def test_eps_models_are_labeled_as_eps(toy):
    toy.schedule = DiffusionSchedule(scaled_linear_alphas())
    assert export.describe(trained(toy), toy, "x", 0.0, {})["modelspec.prediction_type"] == "epsilon"


def test_a_failed_save_leaves_the_last_file_and_nothing_else(tmp_path, toy, monkeypatch):
    path = saved(tmp_path / "x.safetensors", toy, trained(toy))
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        saved(path, toy, trained(toy, rank=3))
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_extra_tensors_of_a_loaded_file_are_saved_again(tmp_path, toy):
    brought = {
        "lora_te_layer.lora_up.weight": torch.randn(4, 2),
        "lora_te_layer.lora_down.weight": torch.randn(2, 4),
        "lora_unet_conv_in.diff_b": torch.randn(8),
    }
    network = build_network(toy, AdapterSettings(rank=2, targets="attention"), lora_file.split_lora(brought))
    found = load_file(saved(tmp_path / "x.safetensors", toy, network, "kohya"))
    assert all(torch.equal(found[key], value) for key, value in brought.items())


def test_a_tucker_lora_reaches_diffusers_naming_as_plain_matrices(toy):
    parts = {"lora_up.weight": (8, 2, 1, 1), "lora_down.weight": (2, 3, 1, 1), "lora_mid.weight": (2, 2, 3, 3)}
    file = lora_file.split_lora({f"conv_in.{part}": torch.randn(shape) for part, shape in parts.items()})
    network = build_network(toy, AdapterSettings(rank=2, targets="attention"), file)
    again = build_network(
        toy, AdapterSettings(rank=2), lora_file.split_lora(export.to_tensors(network, toy, "diffusers"))
    )
    torch.testing.assert_close(output(toy, again), output(toy, network), rtol=1e-4, atol=1e-5)


def test_input_axis_magnitudes_in_diffusers_naming_are_kept_with_a_warning(toy, caplog):
    tensors = export.to_tensors(trained(toy, dora=True), toy, "diffusers")
    assert "transformer.conv_in.dora_scale" in tensors and "saved as dora_scale" in caplog.text


def test_an_unknown_naming_is_refused(toy):
    with pytest.raises(TrainError, match='"a1111", expected one of comfyui, kohya, diffusers'):
        export.to_tensors(trained(toy), toy, "a1111")


class Fused(Toy):
    """Diffusers has no name for its fused layer, but for the rows of it; those of the last are in another order."""

    def export_names(self, naming):
        names = super().export_names(naming)
        return {"conv_in": names["conv_in"]} if naming == "diffusers" else names

    def other_names(self):
        rows = {
            "unknown.q": (0, 1),
            "transformer.q": (0, 1),
            "transformer.all": range(6),
            "transformer.kv": (5, 4, 3, 2),
        }
        return {prefix: LayerRows("blocks.0.to_q", places) for prefix, places in rows.items()}


@pytest.mark.parametrize("changes", [{}, {"dora": True, "dora_axis": "output"}, {"kind": "loha"}])
def test_j7_diffusers_naming_splits_fused_layers_by_rows_and_they_continue_as_one(changes):
    toy = Fused().requires_grad_(False)
    network = trained(toy, **changes)
    tensors = export.to_tensors(network, toy, "diffusers")
    assert {key.split(".")[1] for key in tensors} == {"conv_in", "q", "kv"}
    if changes.get("kind") == "loha":
        with pytest.raises(TrainError, match="hada_w1_a cannot be joined"):
            build_network(toy, AdapterSettings(rank=2), lora_file.split_lora(tensors))
        first, second = (tensors[f"transformer.kv.hada_w{n}_a"] @ tensors[f"transformer.kv.hada_w{n}_b"] for n in "12")
        change = dict(network.items())["blocks.0.to_q"].factors.weight()[[5, 4, 3, 2]]
        torch.testing.assert_close(first * second * 0.5, change)
        return
    again = build_network(toy, AdapterSettings(rank=2, targets="all"), lora_file.split_lora(tensors))
    assert {adapter.factors.rank for _, adapter in again.items()} == {2}
    torch.testing.assert_close(output(toy, again), output(toy, network))


@pytest.mark.parametrize(
    ("changes", "word"), [({"kind": "lokr"}, "lokr_w1"), ({"dora": True, "dora_axis": "input"}, "along the input axis")]
)
def test_j7_what_cannot_be_split_is_refused_with_its_names(changes, word):
    toy = Fused().requires_grad_(False)
    with pytest.raises(TrainError, match=rf"splits blocks.0.to_q into transformer.q, transformer.kv, but .*{word}"):
        export.check_names(trained(toy, **changes), toy, "diffusers")


def test_j7_a_layer_of_which_diffusers_names_only_some_rows_has_no_name(monkeypatch):
    toy = Fused().requires_grad_(False)
    monkeypatch.setattr(
        toy, "other_names", lambda: {"transformer.q": LayerRows("blocks.0.to_q", (0, 1))}, raising=False
    )
    with pytest.raises(TrainError, match="has no name for 1 of 2 layers"):
        export.check_names(trained(toy), toy, "diffusers")


def test_j7_split_dora_that_does_not_cover_the_layer_is_refused():
    toy = Fused().requires_grad_(False)
    tensors = export.to_tensors(trained(toy, dora=True, dora_axis="output"), toy, "diffusers")
    with pytest.raises(TrainError, match="dora_scale cannot be joined"):
        build_network(
            toy,
            AdapterSettings(rank=2, targets="all"),
            lora_file.split_lora({k: v for k, v in tensors.items() if "kv.lora_mag" not in k}),
        )


def test_j7_names_that_the_loader_here_does_not_know_are_warned_of(caplog):
    toy = Fused().requires_grad_(False)
    export.warn_of_unread_names(trained(toy), toy, "diffusers")
    assert "1 of the 3 names that diffusers has (transformer.conv_in, …)" in caplog.text
    caplog.clear()
    export.warn_of_unread_names(trained(toy), toy, "comfyui")
    assert not caplog.text


def test_i4_trigger_words_base_and_tags_are_where_other_tools_look_for_them(tmp_path) -> None:
    class Known(SmallDenoiser):
        architecture, base_version = "stable-diffusion-xl-v1-base", "sdxl_base_v1-0"

    dataset = make_dataset(tmp_path / "set")
    found = []
    for counted in (True, False):
        settings = {"trigger_words": " zxq cat ", "tag_statistics": counted}
        lora = run_training(tmp_path / str(counted), dataset, Known(), **settings).lora
        with safe_open(lora, "pt") as file:
            found.append(file.metadata())
    assert found[0]["modelspec.architecture"] == "stable-diffusion-xl-v1-base/lora"
    assert found[0]["ss_base_model_version"] == "sdxl_base_v1-0"
    assert found[0]["modelspec.trigger_phrase"] == "zxq cat"
    tags = json.loads(found[0]["ss_tag_frequency"])
    assert tags == {"": {f"caption {number}": 1 for number in range(24)}} and found[0]["ss_caption_count"] == "24"
    assert "ss_tag_frequency" not in found[1] and "ss_caption_count" not in found[1]


def test_i4_without_trigger_words_or_a_known_base_nothing_is_claimed(tmp_path) -> None:
    with safe_open(run_training(tmp_path, make_dataset(tmp_path / "set")).lora, "pt") as file:
        found = file.metadata()
    assert "modelspec.trigger_phrase" not in found and "ss_base_model_version" not in found
    assert "streamcache.partial" not in found
