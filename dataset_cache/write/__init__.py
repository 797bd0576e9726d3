"""Writing: collect entries and samples, publish them as a new generation."""

from .checked import CheckedGeneration, existing_folder, leased_manifest, open_checked, open_exclusive
from .publishing import (
    PUBLISH_HOLDER,
    PublishLock,
    current_publisher,
    index_generation,
    publish,
    remove_superseded,
    shards_inside,
)
from .repack import Rewrite, plan_rewrite, small_shards, wasteful_shards, write_packing
from .rows import split_rows
from .writer import CacheWriter

__all__ = [
    "PUBLISH_HOLDER",
    "CacheWriter",
    "CheckedGeneration",
    "PublishLock",
    "Rewrite",
    "current_publisher",
    "existing_folder",
    "index_generation",
    "leased_manifest",
    "open_checked",
    "open_exclusive",
    "plan_rewrite",
    "publish",
    "remove_superseded",
    "shards_inside",
    "small_shards",
    "split_rows",
    "wasteful_shards",
    "write_packing",
]
