"""Writing: collect entries and samples, publish them as a new generation."""

from .checked import CheckedGeneration, existing_storage, leased_manifest, open_checked, open_exclusive
from .publishing import (
    PublishLock,
    current_publisher,
    index_generation,
    list_shards,
    named_publisher,
    publish,
    remove_superseded,
)
from .repack import Rewrite, plan_rewrite, small_shards, wasteful_shards, write_packing
from .rows import split_rows
from .writer import CacheWriter

__all__ = [
    "CacheWriter",
    "CheckedGeneration",
    "PublishLock",
    "Rewrite",
    "current_publisher",
    "existing_storage",
    "index_generation",
    "leased_manifest",
    "list_shards",
    "named_publisher",
    "open_checked",
    "open_exclusive",
    "plan_rewrite",
    "publish",
    "remove_superseded",
    "small_shards",
    "split_rows",
    "wasteful_shards",
    "write_packing",
]
