"""Reading: open a cache, access samples, read batches."""

from .buffers import BatchBuffers
from .cache import Cache, open_cache
from .dataset import Batch, Bucket, Dataset, Fields, Sample, Samples
from .leases import LEASES, Lease, holders, were_possible
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
    "holders",
    "open_cache",
    "were_possible",
]
