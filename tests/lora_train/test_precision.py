"""Precision: what a step computes in."""

import pytest
import torch

from streamcache.lora_train.memory import choose_precision

CPU = torch.device("cpu")


def test_auto_is_fp32_without_a_gpu() -> None:
    assert choose_precision("auto", CPU).name == "fp32"


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_a_forward_pass_computes_in_the_chosen_dtype(name: str, dtype: torch.dtype) -> None:
    with choose_precision(name, CPU).autocast():
        assert torch.nn.functional.linear(torch.ones(2, 4), torch.ones(4, 4)).dtype is dtype


def test_only_fp16_scales_its_gradients() -> None:
    assert choose_precision("fp16", CPU).make_scaler().is_enabled()
    assert not choose_precision("bf16", CPU).make_scaler().is_enabled()
