"""A training adapter: on in every step, off in sample images, absent from the file; refused if it does not fit."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from streamcache.errors import TrainError
from streamcache.lora_train.adapters import load_fixed, read_lora

from ..support.small_parts import CHANNELS, SmallDenoiser, make_dataset, run_training
from .short_runs import assert_same_state, last_state


def write_adapter(path: Path, **changes: torch.Tensor) -> Path:
    """A LoRA of rank 2 on the layers `up` and `down`."""
    random = torch.Generator().manual_seed(5)
    shapes = {"up": (16, CHANNELS), "down": (CHANNELS, 16)}
    tensors = {}
    for name, (outputs, inputs) in shapes.items():
        tensors[f"diffusion_model.{name}.lora_up.weight"] = torch.randn(outputs, 2, generator=random)
        tensors[f"diffusion_model.{name}.lora_down.weight"] = torch.randn(2, inputs, generator=random)
    safetensors.torch.save_file({**tensors, **changes}, path)
    return path


class Probed(SmallDenoiser):
    """Records how far its layer `up` is from the base's for the same input, in steps and in sample images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen: dict[str, list[float]] = {"step": [], "sample": []}
        self.place = "step"

    def predict(self, x_t: torch.Tensor, t: torch.Tensor, conditioning: torch.Tensor) -> torch.Tensor:
        layer, probe = self.layers["up"], torch.ones(1, CHANNELS)
        with torch.no_grad():
            base = torch.nn.functional.linear(probe, layer.weight, layer.bias)
            self.seen[self.place].append(float((layer(probe) - base).norm()))
        return super().predict(x_t, t, conditioning)

    def sample(self, *given: Any) -> torch.Tensor:
        self.place = "sample"
        try:
            return super().sample(*given)
        finally:
            self.place = "step"


def test_j4_it_is_on_in_steps_and_off_in_samples(tmp_path: Path) -> None:
    """At step 0 the trained adapter changes nothing, so that only the training adapter shows."""
    adapter, probed = write_adapter(tmp_path / "adapter.safetensors"), Probed()
    weights = read_lora(adapter).modules["diffusion_model.up"]
    expected = float((weights["lora_up.weight"] @ weights["lora_down.weight"] @ torch.ones(CHANNELS)).norm())
    run_training(
        tmp_path, make_dataset(tmp_path / "set"), probed, steps=2, learning_rate=1e-9, sample_every=1, sample_steps=2,
        training_adapter=str(adapter),
    )  # fmt: skip
    assert probed.seen["step"] == pytest.approx([expected] * 2, rel=1e-5)
    assert len(probed.seen["sample"]) == 6 and max(probed.seen["sample"]) < 1e-4 * expected


def test_j4_the_saved_file_is_without_it(tmp_path: Path) -> None:
    adapter, dataset = write_adapter(tmp_path / "adapter.safetensors"), make_dataset(tmp_path / "set")
    plain = run_training(tmp_path / "plain", dataset, learning_rate=1e-12)
    corrected = run_training(tmp_path / "corrected", dataset, learning_rate=1e-12, training_adapter=str(adapter))
    one, other = (safetensors.torch.load_file(result.lora) for result in (plain, corrected))
    assert list(one) == list(other)  # and with no rate to speak of, the same numbers
    assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)


def test_j4_a_run_with_it_resumes_bit_for_bit_also_with_samples_in_between(tmp_path: Path) -> None:
    adapter, dataset = write_adapter(tmp_path / "adapter.safetensors"), make_dataset(tmp_path / "set")
    settings = {"training_adapter": str(adapter), "sample_every": 2, "sample_steps": 1}
    run_training(tmp_path / "whole", dataset, steps=8, **settings)
    run_training(tmp_path / "parts", dataset, steps=3, **settings)
    run_training(tmp_path / "parts", dataset, mode="resume", steps=8, **settings)
    assert_same_state(last_state(tmp_path / "whole"), last_state(tmp_path / "parts"))
    with pytest.raises(TrainError, match="training_adapter: was"):
        run_training(tmp_path / "parts", dataset, mode="resume", steps=9)


def test_j4_no_hooks_are_left_on_the_model(tmp_path: Path) -> None:
    denoiser, adapter = SmallDenoiser(), write_adapter(tmp_path / "adapter.safetensors")
    run_training(tmp_path, make_dataset(tmp_path / "set"), denoiser, training_adapter=str(adapter), sample_every=3)
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in denoiser.layers.values())


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("diffusion_model.other", (3, 3), "a LoRA for another model: this model has none of its 1 modules"),
        ("diffusion_model.up", (7, 2), "expected .16, rank. and .rank, 4.: a LoRA for another model"),
    ],
)
def test_j4_an_adapter_for_another_model_is_refused_before_anything_is_written(
    tmp_path: Path, name: str, shape: tuple[int, int], message: str
) -> None:
    file = tmp_path / "other.safetensors"
    tensors = {f"{name}.lora_up.weight": torch.zeros(shape), f"{name}.lora_down.weight": torch.zeros(shape[1], 3)}
    safetensors.torch.save_file(tensors, file)
    denoiser = SmallDenoiser()
    with pytest.raises(TrainError, match=f"training_adapter: .*other.safetensors.*{message}"):
        run_training(tmp_path, make_dataset(tmp_path / "set"), denoiser, training_adapter=str(file))
    assert not denoiser.calls and not (tmp_path / "runs" / "test" / "run.json").exists()


def test_j4_a_missing_file_and_a_dora_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="training_adapter: .*nowhere.safetensors: cannot be read"):
        run_training(tmp_path, make_dataset(tmp_path / "set"), training_adapter=str(tmp_path / "nowhere.safetensors"))
    dora = write_adapter(tmp_path / "dora.safetensors", **{"diffusion_model.up.dora_scale": torch.ones(1, CHANNELS)})
    with pytest.raises(TrainError, match="up is a DoRA, which cannot be a training adapter"):
        load_fixed(SmallDenoiser(), read_lora(dora))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_j4_weights_that_are_not_finite_are_refused_with_the_file(tmp_path: Path, value: float) -> None:
    bad = {"diffusion_model.down.lora_up.weight": torch.full((CHANNELS, 2), value)}
    file = write_adapter(tmp_path / "adapter.safetensors", **bad)
    with pytest.raises(TrainError, match=r"^training_adapter: .*adapter.safetensors: down has weights that are nan or"):
        run_training(tmp_path, make_dataset(tmp_path / "set"), training_adapter=str(file))
