"""The training data: the order of batches, reading them in advance, and giving them to other loops."""

from .batch_plan import BatchPlan
from .order import Order, SetRule, read_columns
from .prefetch import Loaded, Prefetcher, refuse_plan
from .shares import share_windows, split_rows
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
    "share_windows",
    "split_rows",
]
