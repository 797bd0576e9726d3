"""Reading: open a cache, access samples, read batches."""

from .buffers import BatchBuffers
from .cache import Cache
from .dataset import Batch, Bucket, Dataset, Fields, Sample, Samples
from .leases import LEASES, Lease, holders, were_possible
from .lost_manifest import find_lost, refuse_lost
from .opening import open_cache
from .shard_files import ShardFiles
from .subset import Subset

__all__ = [
    "LEASES",
    "Batch",
    "BatchBuffers",
    "Bucket",
    "Cache",
    "Dataset",
    "Fields",
    "Lease",
    "Sample",
    "Samples",
    "ShardFiles",
    "Subset",
    "find_lost",
    "holders",
    "open_cache",
    "refuse_lost",
    "were_possible",
]
