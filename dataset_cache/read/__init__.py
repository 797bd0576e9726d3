"""Reading: open a cache, look at samples, read batches."""

from .batch import Batch
from .buffers import BatchBuffers
from .cache import Bucket, Cache, open_cache
from .dataset import Fields, Sample
from .leases import LEASES, Lease, holders, were_possible
from .shard_files import ShardFiles
from .subset import Subset

__all__ = [
    "LEASES",
    "Batch",
    "BatchBuffers",
    "Bucket",
    "Cache",
    "Fields",
    "Lease",
    "Sample",
    "ShardFiles",
    "Subset",
    "holders",
    "open_cache",
    "were_possible",
]
