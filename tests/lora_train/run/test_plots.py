"""Plots: drawn for any number of steps, with axes that make sense."""

import math

import pytest
from PIL import Image

from streamcache.lora_train.run.plots import (
    _smoothed,
    draw_grid,
    label,
    plot_buckets,
    plot_loss,
    plot_share,
    text_width,
    ticks,
    wrap_text,
)


def colors(image: Image.Image) -> int:
    return len(image.getcolors(1 << 24))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 19, 20, 500, 20_000])
def test_a_loss_curve_of_any_length_is_drawn(count: int) -> None:
    losses = [(step + 1, 1 / (step + 1) + 0.1 * math.sin(step)) for step in range(count)]
    image = plot_loss(losses, losses[::50])
    assert image.size == (960, 480) and colors(image) > 20


def test_a_flat_and_a_spiky_curve_are_drawn() -> None:
    assert colors(plot_loss([(step, 0.0) for step in range(30)])) > 20
    assert colors(plot_loss([(step, 1e9 if step == 7 else 0.1) for step in range(200)])) > 20


def test_smoothing_has_the_curves_length_and_no_bias_at_its_ends() -> None:
    flat = [(step, 2.0) for step in range(57)]
    assert _smoothed(flat) == [(step, pytest.approx(2.0)) for step in range(57)]
    assert _smoothed([(4, 0.5)]) == [(4, pytest.approx(0.5))]


def test_ticks_are_round_and_inside_the_range() -> None:
    assert ticks(0, 1, 6) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(3, 1994, 8) == [500, 1000, 1500]
    assert ticks(5, 5, 4) == [5]
    assert label(12000) == "12k" and label(0.05) == "0.05" and label(0) == "0"


def test_buckets_shares_and_grids_are_drawn() -> None:
    assert plot_buckets({f"{n}×8": n for n in range(1, 40)}).width == 960
    assert plot_buckets({}).width == 960
    assert plot_share("Time", {"model": (0.0, "#000000")}).width == 960
    grid = draw_grid([[Image.new("RGB", (8, 4)), Image.new("L", (400, 100))]], ["a"], ["x", "y"], "Title", cell=64)
    assert grid.width > 2 * 64
    assert draw_grid([]).size[0] > 0


def test_long_names_are_broken_and_shortened_to_their_column() -> None:
    lines = wrap_text("a photograph of a supercalifragilisticexpialidocious cat in a very wide garden", 96)
    assert len(lines) == 3 and all(text_width(line) <= 110 for line in lines) and "…" in "".join(lines)
    assert wrap_text("a cat", 96) == ["a cat"] and wrap_text("", 96) == []
