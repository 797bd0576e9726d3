"""The training data: the order of batches, reading them in advance, and giving them to other loops."""

from .order import BatchPlan, Order, SetRule, read_columns
from .prefetch import Loaded, Prefetcher, refuse_plan
from .sizes import VAE_SCALE, KnownSizes
from .stream import BatchStream
from .tags import TagCounts, count_tags

__all__ = [
    "VAE_SCALE",
    "BatchPlan",
    "BatchStream",
    "KnownSizes",
    "Loaded",
    "Order",
    "Prefetcher",
    "SetRule",
    "TagCounts",
    "count_tags",
    "read_columns",
    "refuse_plan",
]
