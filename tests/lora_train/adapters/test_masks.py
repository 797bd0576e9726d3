"""Dropout masks from one vector of random numbers per batch."""

import pytest
import torch

from streamcache.lora_train.adapters.masks import PIECE, LayerMask, draw_numbers


def numbers(seed: int = 0) -> torch.Tensor:
    return draw_numbers(torch.Generator().manual_seed(seed))


def agreement(one: torch.Tensor, other: torch.Tensor) -> float:
    """The share of equal values, compared with what two independent masks have."""
    share = one.float().mean() * other.float().mean() + (1 - one.float().mean()) * (1 - other.float().mean())
    return float((one == other).float().mean() / share)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(2, 300, 128), (4, 16, 24, 24), (PIECE * 2 + 5, 16)])
def test_the_share_is_dropped_in_every_row_and_column(share: float, shape: tuple[int, ...]):
    keep = LayerMask.of("blocks.0.to_q").keep(numbers(), torch.Size(shape), share)
    assert keep.shape == shape and keep.dtype is torch.bool
    assert float(keep.float().mean()) == pytest.approx(1 - share, abs=0.01)
    columns = keep.flatten(0, -2).float().mean(0)
    assert (columns - (1 - share)).abs().max() < 6 * (share * (1 - share) / keep.flatten(0, -2).shape[0]) ** 0.5 + 0.01


def test_layers_batches_rows_and_columns_have_masks_of_their_own():
    shape, mask = torch.Size((512, 256)), LayerMask.of("a")
    keep = mask.keep(numbers(), shape, 0.3)
    assert agreement(keep, LayerMask.of("b").keep(numbers(), shape, 0.3)) == pytest.approx(1, abs=0.02)
    assert agreement(keep, mask.keep(numbers(1), shape, 0.3)) == pytest.approx(1, abs=0.02)
    assert agreement(keep[1:], keep[:-1]) == pytest.approx(1, abs=0.02)
    assert agreement(keep[:, 1:], keep[:, :-1]) == pytest.approx(1, abs=0.02)
    square = keep[:256, :256]
    assert agreement(square, square.T) == pytest.approx(1, abs=0.02)


def test_a_mask_follows_from_its_numbers_alone():
    shape = torch.Size((3, 5, 7))
    one, other = (LayerMask.of("a").keep(numbers(4), shape, 0.5) for _ in range(2))
    assert torch.equal(one, other)
