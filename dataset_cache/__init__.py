"""Encoded datasets on disk: write them as a stream, open them in milliseconds, read only what is used.

with CacheWriter("my_set") as w:
    w.add(latent={"samples": latent}, conditioning=[[tokens, {"pooled_output": pooled}]], caption="a cat")
cache = open_cache("my_set")
batch = cache.read_batch([0, 5, 9])
"""

from .batch import Batch
from .buffers import BatchBuffers
from .codecs import Codec, register_codec
from .errors import CacheBusy, CacheError
from .lazy import LazyTensor, realize
from .reader import Bucket, Cache, open_cache
from .sample import Sample
from .writer import CacheWriter, digest_key

__all__ = [
    "Batch",
    "BatchBuffers",
    "Bucket",
    "Cache",
    "CacheBusy",
    "CacheError",
    "CacheWriter",
    "Codec",
    "LazyTensor",
    "Sample",
    "digest_key",
    "open_cache",
    "realize",
    "register_codec",
]
