"""Small orders of samples, without a dataset."""

import numpy as np

from streamcache.lora_train.data.order import BatchPlan, DatasetColumns, Order


def columns(buckets, repeats=1, sets=0, names=("main",), **variants) -> DatasetColumns:
    bucket = np.asarray(buckets, np.int64)
    full = lambda value, dtype: np.full(len(bucket), 0, dtype) + np.asarray(value, dtype)  # noqa: E731
    counts = {name: full(value, np.uint32) for name, value in variants.items()}
    return DatasetColumns(bucket, full(repeats, np.uint32), full(sets, np.int64), names, counts)


def plans(order: Order, epoch: int) -> list[BatchPlan]:
    made = order.epoch(epoch)
    return [order.plan(made, place) for place in range(len(order))]


def seen(order: Order, epoch: int) -> list[int]:
    return [index for plan in plans(order, epoch) for index in plan.indices]
