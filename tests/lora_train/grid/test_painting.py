"""Making the pictures of a grid."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from streamcache.errors import TrainError
from streamcache.lora_train.grid import KeptPictures, check_loras, make_columns, make_rows, paint
from streamcache.reference.encoders import decode_latents, encode_caption

from .pictures import SETTINGS, Counting, write_lora


def test_i2_rows_are_prompts_by_seeds():
    rows = make_rows(["a cat", "a dog"], [3, 4], "blurry")
    assert [(row.prompt, row.seed, row.number) for row in rows] == [
        ("a cat", 3, 0), ("a cat", 4, 0), ("a dog", 3, 1), ("a dog", 4, 1),
    ]  # fmt: skip
    with pytest.raises(TrainError, match="no prompt"):
        make_rows([], [1])


def test_i2_every_picture_is_that_of_its_own_lora_strength_prompt_and_seed(tmp_path: Path):
    loras = [write_lora(tmp_path / f"{name}.safetensors", seed) for seed, name in enumerate("ab")]
    columns, rows = make_columns(loras, (0.5, 1.0), base=True), make_rows(["a cat", "a red dog"], [1, 2])
    painter = Counting()
    pictures = paint(painter, columns, rows, SETTINGS)
    assert len(painter.drawn) == 20 and [len(line) for line in pictures] == [5] * 4
    found = torch.cat([picture.pixels for line in pictures for picture in line])
    assert len(torch.unique(found.flatten(1), dim=0)) == 20
    plain = decode_latents(painter.denoiser.sample(encode_caption("a red dog"), painter.shape, 2, 2))
    assert torch.equal(pictures[3][0].pixels, plain)
    with painter.with_lora(columns[2], rows) as draw:
        assert torch.equal(pictures[1][2].pixels, decode_latents(draw(rows[1])))


def test_i2_a_grid_grows_and_no_picture_is_made_twice(tmp_path: Path):
    kept = KeptPictures(tmp_path / "grid")
    loras, prompts = [write_lora(tmp_path / "a.safetensors")], ["a cat"]
    painter = Counting()
    first = paint(painter, make_columns(loras, (1.0,), True), make_rows(prompts, [1]), SETTINGS, kept)
    assert len(painter.drawn) == 2 and len(kept.rows()) == 2

    again = Counting()
    second = paint(again, make_columns(loras, (1.0,), True), make_rows(prompts, [1]), SETTINGS, kept)
    assert again.drawn == [] and not any(picture.made for picture in second[0])
    assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(first[0], second[0]))

    loras.append(write_lora(tmp_path / "b.safetensors", 2))
    paint(again, make_columns(loras, (0.5, 1.0), True), make_rows(["a cat", "a dog"], [1]), SETTINGS, kept)
    assert len(again.drawn) == 2 * 5 - 2 and len(kept.rows()) == 10


@pytest.mark.parametrize("change", ["lora", "steps", "width", "weights", "prompt", "seed", "strength"])
def test_i2_a_picture_is_made_again_if_anything_that_decides_it_changed(tmp_path: Path, change: str):
    kept, lora = KeptPictures(tmp_path / "grid"), write_lora(tmp_path / "a.safetensors")
    paint(Counting(), make_columns([lora], (1.0,), False), make_rows(["a cat"], [1]), SETTINGS, kept)
    settings = replace(SETTINGS, **{"steps": {"steps": 3}, "width": {"width": 64}}.get(change, {}))
    if change == "lora":
        write_lora(lora.file, seed=9)
    painter = Counting(settings)
    if change == "weights":
        painter._weights = "others"
    rows = make_rows(["a dog" if change == "prompt" else "a cat"], [2 if change == "seed" else 1])
    paint(painter, make_columns([lora], (0.9 if change == "strength" else 1.0,), False), rows, settings, kept)
    assert len(painter.drawn) == 1 and len(kept.rows()) == 2


def test_i2_pictures_without_a_lora_tell_their_models_apart(tmp_path: Path):
    kept = KeptPictures(tmp_path / "grid")
    for weights in ("one", "other", "one"):
        painter = Counting()
        painter._weights = weights
        paint(painter, make_columns([], (1.0,), True), make_rows(["a cat", "a dog"], [1]), SETTINGS, kept)
    bases = [row.base for row in kept.rows().values()]
    assert len(bases) == 4 and bases[0] == bases[1] != bases[2] == bases[3] and len(bases[0]) == 8


def test_i2_an_interrupted_grid_keeps_what_it_has_made(tmp_path: Path):
    kept, lora = KeptPictures(tmp_path / "grid"), write_lora(tmp_path / "a.safetensors")
    columns, rows = make_columns([lora], (1.0,), True), make_rows(["a", "b", "c"], [1])

    def stop(done: int, total: int, text: str) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        paint(Counting(), columns, rows, SETTINGS, kept, stop)
    rest = Counting()
    paint(rest, columns, rows, SETTINGS, kept)
    assert len(rest.drawn) == 2


def test_i2_a_missing_lora_and_one_of_another_family_are_refused_before_anything_is_drawn(tmp_path: Path):
    painter = Counting()
    gone, other = write_lora(tmp_path / "gone.safetensors"), write_lora(tmp_path / "flux.safetensors", layer="x.y")
    wide = write_lora(tmp_path / "wide.safetensors", width=128)
    gone.file.unlink()
    for lora, words in ((gone, "gone.safetensors: the LoRA file is missing"), (other, "flux"), (wide, "wide")):
        with pytest.raises(TrainError, match=words):
            check_loras(painter, make_columns([lora], (1.0,), True))
    assert painter.drawn == []
