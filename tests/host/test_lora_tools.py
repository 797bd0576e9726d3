"""The LoRA tools beside ComfyUI's own LoRA loader."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from streamcache import dev
from streamcache.cli.main import main
from streamcache.tests.host.claims import names_in
from streamcache.tests.host.test_headless import arguments
from streamcache.tests.host.tiny_models import EPS_MODEL

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def outcome(run_in_host: Callable[[str], dict]) -> dict:
    return run_in_host("lora_tool_claims")


@pytest.mark.parametrize("claim", names_in("lora_tool_claims"))
def test_i7_on_the_host(outcome: dict, claim: str) -> None:
    assert outcome[claim] is None, outcome[claim]


def test_i7_convert_takes_names_from_a_model_of_the_host(host: dev.Host, base: Path, tmp_path: Path):
    """kohya names the layers of SD 1.5 as diffusers does; ComfyUI has other names for them."""
    name = "input_blocks.1.1.transformer_blocks.0.attn1.to_q"
    weights = load_file(base / "models" / "diffusion_models" / EPS_MODEL)
    outputs, inputs = next(value.shape for key, value in weights.items() if key.endswith(f"{name}.weight"))
    theirs = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
    up, down = torch.randn(outputs, 2), torch.randn(2, inputs)
    save_file({f"{theirs}.lora_up.weight": up, f"{theirs}.lora_down.weight": down}, tmp_path / "a.safetensors")
    place = [*arguments(host, base, "--model", EPS_MODEL), "--naming", "comfyui"]
    assert (
        main(["lora", "convert", str(tmp_path / "a.safetensors"), "--out", str(tmp_path / "b.safetensors"), *place])
        == 0
    )
    made = load_file(tmp_path / "b.safetensors")
    assert made[f"diffusion_model.{name}.lora_up.weight"].equal(up) and len(made) == 3
