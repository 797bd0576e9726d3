"""Writing: collect entries and samples, publish them as a new generation."""

from .checked import (
    CheckedGeneration,
    existing_storage,
    leased_manifest,
    lost_shards,
    open_checked,
    open_exclusive,
    without_lost_shards,
)
from .publishing import (
    GRACE_SECONDS,
    PublishLock,
    current_publisher,
    in_grace,
    list_shards,
    named_publisher,
    needed_indexes,
    publish,
    refuse_foreign_files,
    refuse_foreign_folder,
    remove_superseded,
)
from .repack import Rewrite, plan_rewrite, small_shards, wasteful_among, wasteful_shards, with_more_blobs, write_packing
from .rows import split_rows
from .writer import CacheWriter

__all__ = [
    "GRACE_SECONDS",
    "CacheWriter",
    "CheckedGeneration",
    "PublishLock",
    "Rewrite",
    "current_publisher",
    "existing_storage",
    "in_grace",
    "leased_manifest",
    "list_shards",
    "lost_shards",
    "named_publisher",
    "needed_indexes",
    "open_checked",
    "open_exclusive",
    "plan_rewrite",
    "publish",
    "refuse_foreign_files",
    "refuse_foreign_folder",
    "remove_superseded",
    "small_shards",
    "split_rows",
    "wasteful_among",
    "wasteful_shards",
    "with_more_blobs",
    "without_lost_shards",
    "write_packing",
]
