"""Writing: collect entries and samples, publish them as a new generation."""

from .compact import Rewrite, plan_rewrite, small_shards, wasteful_shards
from .current import Current, exclusive, existing, leased, open_current
from .index_builder import SampleFacts
from .publisher import PUBLISH_HOLDER, PublisherLock, current_publisher
from .publishing import index_generation, publish, remove_superseded, shards_inside
from .repack import write_packing
from .rows import split_rows
from .writer import CacheWriter

__all__ = [
    "PUBLISH_HOLDER",
    "CacheWriter",
    "Current",
    "PublisherLock",
    "Rewrite",
    "SampleFacts",
    "current_publisher",
    "exclusive",
    "existing",
    "index_generation",
    "leased",
    "open_current",
    "plan_rewrite",
    "publish",
    "remove_superseded",
    "shards_inside",
    "small_shards",
    "split_rows",
    "wasteful_shards",
    "write_packing",
]
