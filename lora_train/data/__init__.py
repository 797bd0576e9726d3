"""The training data: order, draws, prefetching."""

from .order import BatchPlan, Order, SetRule, read_columns
from .prefetch import Loaded, Prefetcher, refuse_plan

__all__ = [
    "BatchPlan",
    "Loaded",
    "Order",
    "Prefetcher",
    "SetRule",
    "read_columns",
    "refuse_plan",
]
