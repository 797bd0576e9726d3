"""Names of layers: naming, part of the pipeline, block, and which follow from others."""

import pytest

from streamcache.lora_train.lora_tools.names import block_of, component_of, naming_of, respell, same_name

FLUX = "double_blocks.3.img_attn.qkv"


@pytest.mark.parametrize(
    ("prefix", "naming"),
    [
        (f"diffusion_model.{FLUX}", "comfyui"),
        ("lora_unet_double_blocks_3_img_attn_qkv", "kohya"),
        ("lora_te1_text_model_encoder_layers_0_mlp_fc1", "kohya"),
        ("transformer.transformer_blocks.0.attn.to_q", "diffusers"),
        ("unet.down_blocks.0.attentions.0.proj_in", "diffusers"),
        ("base_model.model.layers.0.attention.to_q", "peft"),
        ("lycoris_layers_0_attention", "lycoris"),
        (FLUX, "plain"),
    ],
)
def test_the_naming_is_known_by_how_a_prefix_begins(prefix: str, naming: str):
    assert naming_of([prefix]) == naming


def test_the_naming_of_a_file_is_that_of_most_layers():
    assert (
        naming_of(["lora_unet_a", "diffusion_model.a", "diffusion_model.b"]) == "comfyui" and naming_of([]) == "plain"
    )


def test_all_spellings_of_a_layer_have_one_name():
    spellings = [f"diffusion_model.{FLUX}", f"model.diffusion_model.{FLUX}", f"base_model.model.{FLUX}", FLUX]
    assert {same_name(s) for s in [*spellings, "lora_unet_double_blocks_3_img_attn_qkv"]} == {FLUX.replace(".", "_")}


@pytest.mark.parametrize(
    ("prefix", "part", "block"),
    [
        (f"diffusion_model.{FLUX}", "model", ("double_blocks", 3)),
        ("lora_unet_input_blocks_4_1_proj_in", "model", ("input_blocks", 4)),
        ("diffusion_model.img_in", "model", ("img_in", None)),
        ("lora_te1_text_model_encoder_layers_11_mlp_fc1", "te1", ("lora_te1_text_model_encoder_layers", 11)),
        ("text_encoders.clip_l.transformer.text_model.encoder.layers.2.x", "text_encoders",
         ("text_encoders.clip_l.transformer.text_model.encoder.layers", 2)),
    ],
)  # fmt: skip
def test_a_prefix_names_the_part_and_the_block(prefix: str, part: str, block: tuple):
    assert (component_of(prefix), tuple(block_of(prefix))) == (part, block)


@pytest.mark.parametrize(
    ("prefix", "naming", "metadata", "expected"),
    [
        (f"diffusion_model.{FLUX}", "kohya", {}, "lora_unet_double_blocks_3_img_attn_qkv"),
        (f"model.diffusion_model.{FLUX}", "comfyui", {}, f"diffusion_model.{FLUX}"),
        ("lora_unet_double_blocks_3_img_attn_qkv", "comfyui", {}, None),  # which underscores were dots is unknown
        (f"diffusion_model.{FLUX}", "diffusers", {}, None),
        ("diffusion_model.input_blocks.4.1.proj_in", "kohya", {}, None),  # SD 1 has another name than SDXL
        ("diffusion_model.input_blocks.4.1.proj_in", "kohya", {"ss_base_model_version": "sdxl_base_v1-0"},
         "lora_unet_input_blocks_4_1_proj_in"),
        ("text_encoders.clip_l.a", "kohya", {}, None),
    ],
)  # fmt: skip
def test_a_name_follows_from_another_or_takes_the_model(prefix, naming, metadata, expected):
    assert respell(prefix, naming, metadata) == expected
