"""The configuration of PEFT: alphas and ranks per layer, in the header or next to the file."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from streamcache.errors import TrainError
from streamcache.lora_train.adapters import build_network, lora_file

from .other_files import EXPECTED, GOLDEN, Model, opened, pair, settings


@pytest.mark.parametrize("diffusers", [False, True])
def test_alphas_and_ranks_of_peft_are_those_of_its_configuration(tmp_path, diffusers: bool) -> None:
    """PEFT writes them next to the file, diffusers into its header, for each part of the pipeline."""
    path, model = GOLDEN / "peft/adapter_model.safetensors", Model()
    if diffusers:
        config = json.loads(path.with_name("adapter_config.json").read_text())
        header = {f"transformer.{key}": value for key, value in config.items()}
        header = {"text_encoder.lora_alpha": 77, **header}
        tensors = {key.replace("base_model.model.", "transformer."): value for key, value in load_file(path).items()}
        path = tmp_path / "pytorch_lora_weights.safetensors"
        save_file(tensors, path, {"lora_adapter_metadata": json.dumps(header)})
    network = dict(build_network(model, settings(2), lora_file.read_lora(path)).items())
    for name, rank in (("linear", 2), ("image", 4)):
        assert network[name].factors.rank == rank
        torch.testing.assert_close(
            network[name].factors.weight().detach(), EXPECTED[f"peft.{name}"], rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(
    "metadata",
    [
        "{",
        "[]",
        "3",
        '{"transformer.lora_alpha": "much"}',
        '{"lora_alpha": NaN}',
        '{"lora_alpha": 1, "alpha_pattern": {"(": 2}}',
    ],
)
def test_a_damaged_configuration_of_peft_is_refused(metadata: str) -> None:
    with pytest.raises(TrainError, match="linear: its alpha is unknown"):
        opened(pair("transformer.linear"), {"lora_adapter_metadata": metadata})


def alpha_of(prefix: str, facts: dict) -> float:
    return opened(pair(prefix), {"lora_adapter_metadata": json.dumps(facts)})["linear"].factors.alpha


@pytest.mark.parametrize("prefix", ["diffusion_model.linear", "linear", "base_model.model.linear"])
@pytest.mark.parametrize("part", ["transformer", "unet", "prior"])
def test_a_layer_outside_the_named_parts_gets_the_alpha_of_the_denoiser(prefix: str, part: str) -> None:
    facts = {"text_encoder.lora_alpha": 4, "text_encoder_2.lora_alpha": 5, f"{part}.lora_alpha": 32}
    assert alpha_of(prefix, facts) == 32
    assert alpha_of(prefix, {**facts, f"{part}.alpha_pattern": {"linear": 8}}) == 8


@pytest.mark.parametrize("parts", [["text_encoder"], ["prior", "decoder"], ["text_encoder", "text_encoder_2"]])
def test_an_alpha_that_could_be_of_several_parts_is_refused(parts: list[str]) -> None:
    with pytest.raises(TrainError, match=rf"linear: its alpha is unknown.*ambiguous: found for .*{parts[0]}"):
        alpha_of("diffusion_model.linear", {f"{part}.lora_alpha": 4 for part in parts})


def test_a_text_encoder_without_configuration_gets_no_alpha_of_another_part() -> None:
    tensors = pair("transformer.linear") | pair("text_encoder_2.layer")
    metadata = {"lora_adapter_metadata": json.dumps({"transformer.lora_alpha": 32, "text_encoder.lora_alpha": 4})}
    modules = lora_file.split_lora(tensors, metadata).modules
    assert "alpha" not in modules["text_encoder_2.layer"] and modules["transformer.linear"]["alpha"] == 32


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$x",
        "(a|aa)*x",
        "(?:(a)*b?)*x",
        "a*" * 30 + "x",
        "a?" * 30 + "a" * 30,
        "(a|a|b)" * 30,
        "(?=a)x",
        "a" * 1001,
    ],
)
def test_a_pattern_that_could_run_for_ages_is_refused(pattern: str) -> None:
    tensors = pair("transformer." + "a" * 26 + "b")
    metadata = {
        "lora_adapter_metadata": json.dumps({"transformer.lora_alpha": 1, "transformer.alpha_pattern": {pattern: 2}})
    }
    with pytest.raises(TrainError, match="its alpha is unknown.*alpha_pattern .* is too complex"):
        lora_file.split_lora(tensors, metadata)


@pytest.mark.parametrize(
    "pattern",
    [
        "transformer_blocks.7.attn.to_q",
        r"transformer_blocks\.\d+\.attn\.(to_q|to_k|to_v)",
        r"^transformer_blocks\.[0-9]{1,2}\..*to_q",
        ".*attn.*to_q",
        r"(?:single_)?transformer_blocks\.(1|3|5|7|9)\.(attn|norm)\.to_[qkv]",
        "to_q",
    ],
)
def test_patterns_that_people_write_still_choose_the_alpha(pattern: str) -> None:
    prefix = "transformer.transformer_blocks.7.attn.to_q"
    facts = {"transformer.lora_alpha": 1, "transformer.alpha_pattern": {pattern: 2}}
    modules = lora_file.split_lora(pair(prefix), {"lora_adapter_metadata": json.dumps(facts)}).modules
    assert modules[prefix]["alpha"] == 2
