"""Rank rules choose the ranks that their formulas give."""

import pytest
import torch

from streamcache.errors import TrainError
from streamcache.lora_train.lora_tools.change import Product, Whole
from streamcache.lora_train.lora_tools.rank import RankRule

VALUES = torch.tensor([4.0, 2.0, 1.0, 1.0, 0.5])  # squares: 16, 4, 1, 1, 0.25: 22.25 together; sum 8.5
CHANGE = Whole(torch.diag(VALUES), (5, 5))


@pytest.mark.parametrize(
    ("rule", "target", "rank"),
    [
        ("energy", 16 / 22.25, 1),
        ("energy", 0.72, 2),
        ("energy", 1.0, 5),
        ("sv_fro", 0.84, 1),  # 0.84² = 0.706 < 0.719
        ("sv_fro", 0.9, 2),  # 0.81 < 0.899
        ("sv_cumulative", 4 / 8.5, 1),
        ("sv_cumulative", 0.71, 3),
        ("sv_ratio", 1.5, 1),
        ("sv_ratio", 4.5, 4),
        ("sv_ratio", 4.0, 2),  # a value of exactly a quarter is not above it
        ("sv_ratio", 100.0, 5),
    ],
)
def test_i7_dynamic_rules_choose_the_smallest_rank_that_reaches_the_target(rule: str, target: float, rank: int):
    product, kept = RankRule(8, rule=rule, target=target).reduce(CHANGE)
    assert product.rank == rank
    assert kept == pytest.approx(float(VALUES[:rank].square().sum() / 22.25), rel=1e-6)
    assert RankRule(1, rule=rule, target=target).reduce(CHANGE)[0].rank == 1


def test_a_product_that_is_small_enough_keeps_its_factors():
    product = Product(torch.randn(8, 3), torch.randn(3, 6), (8, 6))
    assert RankRule(3).reduce(product) == (product, 1.0)


def test_convolutions_have_a_rank_of_their_own():
    assert RankRule(4, conv_rank=2).reduce(Whole(torch.randn(8, 18), (8, 2, 3, 3)))[0].rank == 2
    assert RankRule(4, conv_rank=2).reduce(Whole(torch.randn(8, 18), (8, 18, 1, 1)))[0].rank == 4


@pytest.mark.parametrize("rule", ["", "energy", "sv_ratio"])
def test_a_change_of_zeros_gets_rank_1(rule: str):
    product, kept = RankRule(4, rule=rule, target=1.0).reduce(Whole(torch.zeros(8, 6), (8, 6)))
    assert (product.rank, kept) == (1, 1.0) and not product.matrix().any()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((0,), "rank: found 0"),
        ((4, 0), "conv_rank: found 0"),
        ((4, None, "sv_max", 1.0), 'found the rule "sv_max", expected one of energy'),
        ((4, None, "energy", 1.5), "energy: found 1.5"),
        ((4, None, "sv_fro", float("nan")), "sv_fro: found nan"),
        ((4, None, "sv_ratio", 0.5), "sv_ratio: found 0.5"),
    ],
)
def test_impossible_rules_are_refused(values: tuple, words: str):
    with pytest.raises(TrainError, match=words):
        RankRule(*values)
