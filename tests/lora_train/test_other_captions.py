"""Preservation: the teacher is the model without the adapter, on the same rows with another caption."""

from itertools import islice
from pathlib import Path

import pytest
import safetensors.torch
import torch
from PIL import Image

from streamcache.dataset_cache import FolderSource, encode, make_plan, open_cache
from streamcache.errors import TrainError
from streamcache.lora_train.config import TrainConfig
from streamcache.lora_train.other_captions import Preservation, find_conditioning
from streamcache.lora_train.session import make_order

from ..support.encoders import SMALL, CountingImages, CountingTexts
from ..support.small_parts import SmallDenoiser, make_dataset, run_training
from .short_runs import assert_same_state, last_state, losses

ON = {"preservation_weight": 1.0}


class Noting(SmallDenoiser):
    """Notes for every model call whether a gradient is kept, and its prediction."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.notes: list[tuple[bool, torch.Tensor, torch.Tensor]] = []

    def predict(self, x_t: torch.Tensor, t: torch.Tensor, conditioning: torch.Tensor) -> torch.Tensor:
        out = super().predict(x_t, t, conditioning)
        self.notes.append((out.requires_grad, x_t.clone(), out.detach().clone()))
        return out


@pytest.mark.parametrize(("caption", "value"), [("", -1.0), ("caption 3", 3.0)])
def test_j5_the_teacher_is_the_model_without_the_adapter_on_the_same_rows(
    tmp_path: Path, caption: str, value: float
) -> None:
    denoiser = Noting()
    settings = {**ON, "preservation_caption": caption, "steps": 4, "prefetch": 0}
    run_training(tmp_path, make_dataset(tmp_path / "set"), denoiser, **settings)
    assert len(denoiser.notes) == 12  # per step: the batch, the teacher, the student
    for step in range(4):
        batch, teacher, student = range(3 * step, 3 * step + 3)
        assert [denoiser.notes[call][0] for call in (batch, teacher, student)] == [True, False, True]
        assert all(torch.equal(denoiser.notes[batch][1], denoiser.notes[call][1]) for call in (teacher, student))
        words = denoiser.calls[teacher]["text"]
        assert (words == value).all() and torch.equal(words, denoiser.calls[student]["text"])
        _, x_t, taught = denoiser.notes[teacher]
        bare = SmallDenoiser().predict(x_t, torch.tensor(denoiser.calls[teacher]["t"]), words)
        assert torch.equal(taught, bare)
    # The student begins as the teacher, and has moved away from it by the end.
    assert torch.equal(denoiser.notes[1][2], denoiser.notes[2][2])
    assert not torch.equal(denoiser.notes[10][2], denoiser.notes[11][2])


def test_j5_a_weight_of_zero_is_the_plain_training_bit_for_bit(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "set")
    for name, settings in (("plain", {}), ("zero", {"preservation_weight": 0.0, "preservation_caption": "caption 3"})):
        run_training(tmp_path / name, dataset, **settings)
    assert_same_state(last_state(tmp_path / "plain"), last_state(tmp_path / "zero"))
    assert losses(tmp_path / "plain") == losses(tmp_path / "zero")


def test_j5_it_keeps_the_model_as_it_was_for_its_caption(tmp_path: Path) -> None:
    """How far the trained model is from the base for the empty caption, with and without preservation."""
    dataset, strayed = make_dataset(tmp_path / "set"), {}
    for name, weight in (("plain", 0.0), ("kept", 20.0)):
        settings = {"steps": 150, "preservation_weight": weight, "targets": "all", "save_every": 0}
        lora = safetensors.torch.load_file(run_training(tmp_path / name, dataset, **settings).lora)
        base, trained = SmallDenoiser(), SmallDenoiser()
        for layer in trained.layers:
            up, down = (lora[f"diffusion_model.{layer}.lora_{part}.weight"] for part in ("up", "down"))
            trained.layers[layer].weight.data += up @ down
        x_t, t = torch.randn(8, 4, 8, 8, generator=torch.Generator().manual_seed(1)), torch.linspace(0.1, 0.9, 8)
        words = torch.full((8, 5, 6), -1.0)
        strayed[name] = float((trained.predict(x_t, t, words) - base.predict(x_t, t, words)).square().mean())
    assert strayed["kept"] < 0.5 * strayed["plain"]


def test_j5_only_a_share_of_the_batches_takes_part_and_a_resumed_run_chooses_the_same(tmp_path: Path) -> None:
    dataset, settings = make_dataset(tmp_path / "set"), {**ON, "preservation_share": 0.5, "accumulate": 2}
    denoiser = SmallDenoiser()
    run_training(tmp_path / "whole", dataset, denoiser, steps=20, **settings)
    preserved = (len(denoiser.calls) - 40) / 2
    assert 10 <= preserved <= 30
    run_training(tmp_path / "parts", dataset, steps=7, **settings)
    run_training(tmp_path / "parts", dataset, mode="resume", steps=20, **settings)
    assert_same_state(last_state(tmp_path / "whole"), last_state(tmp_path / "parts"))


def test_j5_a_caption_that_is_not_in_the_cache_is_refused_before_the_first_step(tmp_path: Path) -> None:
    denoiser, dataset = SmallDenoiser(), make_dataset(tmp_path / "set")
    with pytest.raises(TrainError, match='preservation_caption = "a dog": is neither a caption of the dataset nor'):
        run_training(tmp_path, dataset, denoiser, **ON, preservation_caption="a dog")
    bare = make_dataset(tmp_path / "bare", empty=False)
    for settings, name in ((ON, "preservation_caption"), ({"guidance_target": 3.0}, "guidance_target")):
        with pytest.raises(TrainError, match=f"{name}: the dataset has no encoded empty caption"):
            run_training(tmp_path, bare, denoiser, **settings)
    assert not denoiser.calls


def test_j5_a_second_line_in_one_caption_file_puts_a_class_into_the_cache(tmp_path: Path) -> None:
    """As docs/distilled.md says: no row more, and only that image trains on it, about every other epoch."""
    for number in range(6):
        Image.new("RGB", (64, 64), (40 * number, 0, 0)).save(tmp_path / f"{number}.png")
        text = f"a red thing, number {number}" + ("\na woman" if number == 0 else "")
        (tmp_path / f"{number}.txt").write_text(text)
    encoders = {"image_encoder": CountingImages(), "text_encoder": CountingTexts()}
    plan = make_plan([FolderSource(tmp_path)], settings=SMALL, **encoders)
    encode(plan, tmp_path / "set")
    dataset = open_cache(tmp_path / "set")
    words = find_conditioning(dataset, "preservation_caption", "a woman")
    assert torch.equal(words[0][0], dataset.sample(0, {"conditioning": 1}).conditioning[0][0])
    order, _ = make_order(dataset, TrainConfig(batch_size=1))
    drawn = [sum(batch.variants["conditioning"]) for batch in islice(order.walk(), 40 * len(order))]
    assert len(order) == 6 and 10 < sum(drawn) < 30


def test_j5_a_guided_target_uses_the_prediction_for_the_empty_caption_without_a_gradient(tmp_path: Path) -> None:
    denoiser = Noting()
    run_training(tmp_path, make_dataset(tmp_path / "set"), denoiser, guidance_target=3.0, steps=2, prefetch=0)
    assert [note[0] for note in denoiser.notes] == [False, True] * 2
    assert all((call["text"] == -1).all() for call in denoiser.calls[::2])


def test_j5_a_share_is_chosen_by_the_batch_and_not_by_chance() -> None:
    half = Preservation(1.0, 0.5, None)
    chosen = [half.is_due(f"0:{number}") for number in range(400)]
    assert chosen == [half.is_due(f"0:{number}") for number in range(400)] and 150 < sum(chosen) < 250
