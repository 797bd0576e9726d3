"""The reference model as the painter of a grid."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from streamcache.errors import TrainError
from streamcache.lora_train import Column, GridSettings, Painter, Row
from streamcache.reference.denoiser import ReferenceDenoiser
from streamcache.reference.painter import ReferencePainter

from .awake import awake

SETTINGS = GridSettings(steps=2, width=16, height=24)
LAYER = "diffusion_model.blocks.0.attn.to_q"


@pytest.fixture
def painter() -> ReferencePainter:
    return ReferencePainter(ReferenceDenoiser(awake()), SETTINGS)


def test_the_painter_follows_the_protocol(painter: ReferencePainter):
    drawn: Painter = painter
    with drawn.with_lora(Column(), [Row("a cat", 1)]) as draw:
        assert drawn.decode(draw(Row("a cat", 1))).shape == (1, 24, 16, 3)


def test_i2_a_strength_scales_the_change_of_the_weight(painter: ReferencePainter, tmp_path: Path):
    up, down = torch.randn(32, 2), torch.randn(2, 32)
    scaled = {f"{LAYER}.lora_up.weight": up * 0.5, f"{LAYER}.lora_down.weight": down}
    save_file({f"{LAYER}.lora_up.weight": up, f"{LAYER}.lora_down.weight": down}, tmp_path / "a.safetensors")
    save_file(scaled, tmp_path / "half.safetensors")
    made = []
    for name, strength in (("a", 0.5), ("half", 1.0)):
        with painter.with_lora(Column(tmp_path / f"{name}.safetensors", strength, name), []) as draw:
            made.append(draw(Row("a cat", 1)))
    torch.testing.assert_close(*made)


def test_a_kind_that_has_no_strength_is_refused_at_another_one(painter: ReferencePainter, tmp_path: Path):
    save_file({f"{LAYER}.oft_blocks": torch.zeros(4, 8, 8)}, tmp_path / "oft.safetensors")
    column = Column(tmp_path / "oft.safetensors", 0.5, "oft")
    words = r"oft\.safetensors: .* is OFT, which the reference model has at strength 1"
    with pytest.raises(TrainError, match=words), painter.with_lora(column, []):
        pass
