"""The training data: order, draws, prefetching."""

from .columns import read_columns
from .order import BatchPlan, Order, SetRule
from .prefetch import Loaded, Prefetcher, refuse_plan
from .upload import map_tensors

__all__ = [
    "BatchPlan",
    "Loaded",
    "Order",
    "Prefetcher",
    "SetRule",
    "map_tensors",
    "read_columns",
    "refuse_plan",
]
