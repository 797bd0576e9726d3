"""Random draws and how samples are spread over batches."""

import random

import numpy as np
import torch

from streamcache.lora_train.data.order import Order, SetRule

from .small_orders import columns, plans, seen


def test_d2_the_rows_of_a_bucket_are_spread_evenly_over_its_batches() -> None:
    order = Order(columns([0] * 9 + [1] * 5), seed=0, batch_size=4)
    assert sorted(len(plan.indices) for plan in plans(order, 0)) == [2, 3, 3, 3, 3]


def test_d4_the_order_comes_from_a_private_generator() -> None:
    order = Order(columns([0] * 40 + [1] * 9), seed=11, batch_size=4)
    before = plans(order, 3)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    assert plans(order, 3) == before
    assert random.getstate() == states[0] and np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])


def test_a23_every_sample_of_a_drawn_set_comes_up_equally_often() -> None:
    order = Order(columns([0] * 7 + [1] * 2 + [2]), 1, 4, {"main": SetRule(samples=3)})
    counts = np.bincount([index for epoch in range(1500) for index in seen(order, epoch)], minlength=10)
    assert counts.sum() == 4500 and abs(counts / 450 - 1).max() < 0.2


def test_variants_are_drawn_by_seed_epoch_and_sample_and_spatial_fields_agree() -> None:
    data = columns([0] * 400, latent=2, mask=2, conditioning=5)
    order = Order(data, 6, 4)
    by_sample = [
        {index: [plan.variants[f][row] for f in ("latent", "mask", "conditioning")]
         for plan in plans(order, epoch) for row, index in enumerate(plan.indices)}
        for epoch in range(2)
    ]  # fmt: skip
    assert all(latent == mask for latent, mask, _ in by_sample[0].values())
    assert by_sample[0] != by_sample[1]
    assert {c for _, _, c in by_sample[0].values()} == set(range(5))
    smaller = Order(data, 6, 7)  # the batch size changes the order, not the variants
    again = {
        index: plan.variants["conditioning"][row]
        for plan in plans(smaller, 0)
        for row, index in enumerate(plan.indices)
    }
    assert again == {index: drawn[2] for index, drawn in by_sample[0].items()}


def test_repeats_of_a_sample_draw_their_own_variants() -> None:
    order = Order(columns([0] * 2, repeats=40, conditioning=4), 6, 8)
    drawn = [v for plan in plans(order, 0) for i, v in zip(plan.indices, plan.variants["conditioning"]) if i == 0]
    assert set(drawn) == {0, 1, 2, 3}


def test_samples_with_one_variant_draw_none() -> None:
    assert plans(Order(columns([0] * 4, latent=1, conditioning=1), 0, 4), 0)[0].variants == {}
