"""The training data: the order of batches, and reading them in advance."""

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
