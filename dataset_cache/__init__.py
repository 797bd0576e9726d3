"""Encoded datasets on disk: write them as a stream, open them in milliseconds, read only what is used.

with CacheWriter("my_set") as w:
    w.add(latent={"samples": latent}, conditioning=[[tokens, {"pooled_output": pooled}]], caption="a cat")
cache = open_cache("my_set")
batch = cache.read_batch([0, 5, 9])
"""

from .errors import CacheBusy, CacheError
from .format.codecs import Codec, register_codec
from .format.dropped import dropped_keys
from .format.lazy import LazyTensor, realize
from .format.manifest import digest_key
from .migrate import migrate
from .read.batch import Batch
from .read.buffers import BatchBuffers
from .read.cache import Bucket, Cache, open_cache
from .read.dataset import Sample
from .upkeep.clean import CATEGORIES, CleanPlan, CompactReport, Removal, clean, compact, preview_clean
from .upkeep.convert import ConvertReport, convert
from .upkeep.copy import CopyReport, duplicate, export
from .upkeep.merge import MergeReport, merge
from .upkeep.repair import RepairReport, repair
from .upkeep.usage import Usage, usage
from .upkeep.verify import Problem, verify
from .write.writer import CacheWriter

__all__ = [
    "CATEGORIES",
    "Batch",
    "BatchBuffers",
    "Bucket",
    "Cache",
    "CacheBusy",
    "CacheError",
    "CacheWriter",
    "CleanPlan",
    "Codec",
    "CompactReport",
    "ConvertReport",
    "CopyReport",
    "LazyTensor",
    "MergeReport",
    "Problem",
    "Removal",
    "RepairReport",
    "Sample",
    "Usage",
    "clean",
    "compact",
    "convert",
    "digest_key",
    "dropped_keys",
    "duplicate",
    "export",
    "merge",
    "migrate",
    "open_cache",
    "preview_clean",
    "realize",
    "register_codec",
    "repair",
    "usage",
    "verify",
]
