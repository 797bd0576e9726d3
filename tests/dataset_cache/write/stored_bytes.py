"""The bytes that the shards of a cache store."""

from pathlib import Path

from streamcache.dataset_cache.format import OpenFile, shard

from ...support.samples import (
    shard_files,
)


def data_bytes(path: Path) -> int:
    """Bytes of blobs in all shards, headers and padding left out."""
    sizes = []
    for file in shard_files(path):
        header, _ = shard.read_header(OpenFile(file))
        sizes += [t["data_offsets"][1] - t["data_offsets"][0] for name, t in header.items() if not name.startswith("~")]
    return sum(sizes)
