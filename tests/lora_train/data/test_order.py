"""The order: every sample in every epoch, one bucket a batch, and nothing but (seed, epoch) behind it."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.errors import TrainError
from streamcache.lora_train.data.order import DatasetColumns, Order, SetRule, read_columns

from .small_orders import columns, plans, seen

# What seed 42 gave in epoch 7 when the order was released: a run resumed by a later release must find the same.
GOLDEN = [[7, 6], [5, 0], [2, 3], [1, 4], [8]]
GOLDEN_VARIANTS = [[0, 3], [3, 1], [3, 2], [3, 0], [3]]


def test_d2_every_sample_is_seen_each_epoch_even_in_buckets_smaller_than_the_batch() -> None:
    order = Order(columns([0] * 13 + [1] * 2 + [2]), seed=3, batch_size=4)
    for epoch in range(5):
        assert sorted(seen(order, epoch)) == list(range(16))


def test_d2_a_batch_never_mixes_buckets_and_is_never_too_large_or_empty() -> None:
    data = columns(np.random.default_rng(0).integers(0, 7, 200))
    order = Order(data, seed=3, batch_size=8)
    for plan in plans(order, 2):
        assert len({int(data.bucket[index]) for index in plan.indices}) == 1
        assert 1 <= len(plan.indices) <= 8


def test_d2_samples_are_reshuffled_within_and_across_buckets() -> None:
    data = columns([0] * 64 + [1] * 64)
    order = Order(data, seed=3, batch_size=8)
    first, second = plans(order, 0), plans(order, 1)
    assert {frozenset(plan.indices) for plan in first} != {frozenset(plan.indices) for plan in second}
    runs = [[int(data.bucket[plan.indices[0]]) for plan in epoch] for epoch in (first, second)]
    assert runs[0] != runs[1] and runs[0] != sorted(runs[0])


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
    st.integers(1, 9),
    st.integers(0, 2**40),
    st.one_of(st.none(), st.integers(1, 90)),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_d2_the_length_is_constant_whatever_is_drawn(buckets, batch, seed, samples, prior) -> None:
    sets = np.arange(len(buckets)) % 3 if prior else np.zeros(len(buckets), int)
    rules = {"a": SetRule(samples=samples), "class": SetRule(prior=True)} if prior else {"a": SetRule(samples=samples)}
    data = columns(
        buckets, repeats=np.arange(len(buckets)) % 3 + 1, sets=sets, names=("a", "b", "class")[: 3 if prior else 1]
    )
    order = Order(data, seed, batch, rules)
    for epoch in range(4):
        made = plans(order, epoch)
        assert len(made) == len(order)
        assert sum(plan.main for plan in made) == order.rows_per_epoch
        for plan in made:
            assert plan.indices and len({buckets[index] for index in plan.indices}) == 1
            assert plan.main <= batch and len(plan.indices) <= order.largest
            assert all((sets[index] == 2) == (row >= plan.main) for row, index in enumerate(plan.indices))


def test_d4_epoch_k_needs_no_replay_and_a_walk_can_start_anywhere() -> None:
    data = columns([0] * 21 + [1] * 6, conditioning=3)
    order = Order(data, seed=5, batch_size=4)
    whole = order.walk()
    run = [next(whole) for _ in range(3 * len(order))]
    assert plans(Order(data, 5, 4), 2) == run[2 * len(order) :]
    late = Order(data, 5, 4).walk(len(order) + 2)
    assert [next(late) for _ in range(5)] == run[len(order) + 2 : len(order) + 7]
    assert [plan.number for plan in run] == list(range(3 * len(order)))


def test_d4_another_seed_gives_another_order() -> None:
    data = columns([0] * 40)
    assert seen(Order(data, 1, 4), 0) != seen(Order(data, 2, 4), 0)


def test_the_order_of_a_seed_never_changes_between_releases() -> None:
    order = Order(columns([0] * 6 + [1] * 3, conditioning=4), seed=42, batch_size=2)
    assert [plan.indices for plan in plans(order, 7)] == GOLDEN
    assert [plan.variants["conditioning"] for plan in plans(order, 7)] == GOLDEN_VARIANTS


def test_a23_repeats_count_and_zero_skips_a_sample() -> None:
    order = Order(columns([0] * 4, repeats=[1, 3, 0, 2]), seed=0, batch_size=4)
    for epoch in range(3):
        assert np.bincount(seen(order, epoch), minlength=4).tolist() == [1, 3, 0, 2]


def test_a23_a_set_count_is_redrawn_each_epoch_and_repeats_by_seed() -> None:
    data = columns([0] * 30 + [1] * 30 + [0] * 5, sets=[0] * 60 + [1] * 5, names=("big", "small"))
    order = Order(data, 9, 4, {"big": SetRule(samples=10)})
    drawn = [sorted(seen(order, epoch)) for epoch in range(4)]
    assert all(len(rows) == 15 and set(range(60, 65)) <= set(rows) for rows in drawn)
    assert all(len(set(rows)) == 15 for rows in drawn)
    assert len({tuple(rows) for rows in drawn}) == 4
    assert drawn == [sorted(seen(Order(data, 9, 4, {"big": SetRule(samples=10)}), epoch)) for epoch in range(4)]


def test_a23_a_weight_takes_a_share_of_a_set_or_several_passes_over_it() -> None:
    data = columns([0] * 20, sets=[0] * 10 + [1] * 10, names=("half", "twice"))
    order = Order(data, 0, 4, {"half": SetRule(weight=0.5), "twice": SetRule(weight=2.5)})
    counts = np.bincount(seen(order, 0), minlength=20)
    assert counts[:10].sum() == 5 and counts[:10].max() == 1
    assert counts[10:].sum() == 25 and set(counts[10:].tolist()) == {2, 3}


def test_an_unknown_set_is_named() -> None:
    with pytest.raises(TrainError, match='set "mian": not in the dataset; expected one of main'):
        Order(columns([0]), 0, 1, {"mian": SetRule(samples=1)})


def test_d6_every_row_has_a_prior_partner_of_its_own_bucket_in_its_batch() -> None:
    data = columns([0] * 9 + [1] * 3 + [0] * 4 + [1] * 50, sets=[0] * 12 + [1] * 54, names=("main", "class"))
    order = Order(data, 4, 4, {"class": SetRule(prior=True)})
    for epoch in range(3):
        for plan in plans(order, epoch):
            assert len(plan.indices) == 2 * plan.main
            assert all((index >= 12) == (row >= plan.main) for row, index in enumerate(plan.indices))
        assert sorted(index for plan in plans(order, epoch) for index in plan.indices[: plan.main]) == list(range(12))


def test_d6_prior_samples_are_used_evenly_and_redrawn() -> None:
    data = columns([0] * 30, sets=[0] * 6 + [1] * 24, names=("main", "class"))
    order = Order(data, 4, 2, {"class": SetRule(prior=True)})
    partners = [sorted(index for index in seen(order, epoch) if index >= 6) for epoch in range(300)]
    assert all(len(set(rows)) == 6 for rows in partners) and partners[0] != partners[1]
    counts = np.bincount(np.concatenate(partners), minlength=30)[6:]
    assert abs(counts / 75 - 1).max() < 0.5


def test_d6_a_bucket_without_class_images_gets_its_partners_in_batches_of_their_own() -> None:
    data = columns([0] * 8 + [1] * 4, sets=[0] * 8 + [1] * 4, names=("main", "class"))
    order = Order(data, 4, 4, {"class": SetRule(prior=True)})
    made = plans(order, 0)
    assert [len(plan.indices) for plan in made] == [4] * 4
    assert sorted(plan.main for plan in made) == [0, 0, 4, 4]
    assert np.bincount(seen(order, 0)).tolist() == [1] * 8 + [2] * 4


def test_a_dataset_of_prior_sets_alone_is_refused() -> None:
    with pytest.raises(TrainError, match="no samples to train on"):
        Order(columns([0, 0]), 0, 1, {"main": SetRule(prior=True)})


def test_held_out_samples_are_never_trained_on() -> None:
    train = np.arange(20) % 4 != 0
    order = Order(columns([0] * 20), 0, 4, train=train)
    assert sorted(seen(order, 0)) == np.flatnonzero(train).tolist()


def test_one_sample_and_a_batch_larger_than_the_set_train() -> None:
    assert seen(Order(columns([0]), 0, 64), 5) == [0]


def test_ten_million_samples_have_an_order_in_seconds_and_no_object_each() -> None:
    data = columns(np.arange(10_000_000) % 30)
    order = Order(data, 1, 8)
    began = time.perf_counter()
    epoch = order.epoch(4)
    assert time.perf_counter() - began < 60
    assert len(order) == 1_250_010 and epoch.samples.nbytes <= 80_000_000
    assert len(order.plan(epoch, 7).indices) == 8


@pytest.mark.parametrize(
    ("full", "sizes"), [(False, [3, 3, 3, 3, 3, 1]), (True, [4, 2, 4, 4, 1, 1])], ids=["even", "full"]
)
def test_batches_are_split_evenly_or_filled_as_asked(full: bool, sizes: list[int]) -> None:
    columns = DatasetColumns(np.repeat([0, 1, 2], [6, 9, 1]), np.ones(16, np.int64), np.zeros(16, np.int64))
    order = Order(columns, 1, 4, full_batches=full)
    epoch = order.epoch(0)
    plans = [order.plan(epoch, place) for place in range(len(order))]
    assert sorted(len(plan.indices) for plan in plans) == sorted(sizes)
    assert sorted(index for plan in plans for index in plan.indices) == list(range(16))


def test_full_batches_cover_drawn_sets_and_prior_partners_too() -> None:
    columns = DatasetColumns(
        np.arange(40) % 3, np.ones(40, np.int64), np.repeat([0, 1, 2], [20, 10, 10]), ("main", "drawn", "prior")
    )
    rules = {"drawn": SetRule(samples=7), "prior": SetRule(prior=True)}
    order = Order(columns, 3, 4, rules, full_batches=True)
    for number in range(20):
        epoch = order.epoch(number)
        plans = [order.plan(epoch, place) for place in range(len(order))]
        assert sum(plan.main for plan in plans) == 27 and all(1 <= plan.main <= 4 for plan in plans)
        assert all(len(plan.indices) == 2 * plan.main for plan in plans)
        assert all(len({int(columns.bucket[i]) for i in plan.indices}) == 1 for plan in plans)


def test_a_dataset_without_a_text_encoder_is_refused_with_what_is_missing(tmp_path) -> None:
    with CacheWriter(tmp_path / "set") as writer:
        for number in range(3):
            writer.add(latent={"samples": torch.zeros(1, 4, 8, 8)}, source=f"{number}.png")
    with pytest.raises(TrainError, match="has no conditionings: it was encoded without a text encoder .CLIP."):
        read_columns(open_cache(tmp_path / "set"))
