"""Compaction: blobs of several shards are copied into fewer, and what nothing refers to is left behind."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..errors import CacheError
from ..format import OFFSET_BITS, PAD, SHARD_BYTES, BlobTable, IndexArrays, ShardFile, blob_table, read_header
from ..read import ShardFiles
from .repack import MAX_HEADER, OpenShard, Packing, pack, write_packing

SMALL_BYTES = SHARD_BYTES // 8
SMALL_COUNT = MAX_HEADER // (8 * 256)  # a shard of many tiny blobs is full before it is large
# So many small shards are merged: each byte is copied a few times at most, however many runs add to a set.
SMALL_SHARDS = 8


@dataclass(frozen=True)
class Rewrite:
    """What a generation looks like after the blobs of some shards moved into new ones."""

    arrays: IndexArrays
    shards: tuple[ShardFile, ...]
    next_shard: int
    packing: Packing


def merge_small(
    dataset: Path, arrays: IndexArrays, shards: Sequence[ShardFile], next_number: int
) -> tuple[IndexArrays, list[ShardFile], int]:
    """Merge the small shards if there are many, so that small incremental runs leave no litter."""
    unchanged = arrays, list(shards), next_number
    if sum(shard.bytes < SMALL_BYTES for shard in shards) < SMALL_SHARDS:
        return unchanged
    table = blob_table(arrays)
    small = small_shards(table, shards)
    if len(small) < SMALL_SHARDS:
        return unchanged
    open_shard = ShardFiles(dataset, shards).file
    try:
        rewrite = plan_rewrite(arrays, table, shards, small, next_number, open_shard)
        write_packing(dataset, rewrite.packing, open_shard)
    except CacheError:
        return unchanged  # a damaged shard cannot be merged; that is no reason to refuse what is new
    return rewrite.arrays, list(rewrite.shards), rewrite.next_shard


def small_shards(table: BlobTable, shards: Sequence[ShardFile]) -> list[int]:
    """The shards that are far from full, by their bytes and by the number of their blobs."""
    counts = np.bincount(table.shards, minlength=len(shards))
    return [n for n, shard in enumerate(shards) if shard.bytes < SMALL_BYTES and counts[n] < SMALL_COUNT]


def wasteful_shards(source: ShardFiles, table: BlobTable) -> list[int]:
    """The shards that hold a blob which the table does not."""
    result = []
    for number in range(len(source.shards)):
        header, _ = read_header(source.file(number))
        live = {blob.hash.hex() for blob in table.blobs(table.rows_of(number))}
        if any(not name.startswith(PAD) and name not in live for name in header):
            result.append(number)
    return result


def plan_rewrite(
    arrays: IndexArrays,
    table: BlobTable,
    shards: Sequence[ShardFile],
    victims: Collection[int],
    next_number: int,
    open_shard: OpenShard,
) -> Rewrite:
    """Plan new shards that take the place of `victims`, with what is referred to in these and nothing else.

    The files of the victims stay: readers of an older generation may need them.
    """
    moving = np.flatnonzero(np.isin(table.shards, list(victims)))
    packing = pack(table, moving.tolist(), [shard.file[0] for shard in shards], open_shard, next_number)
    kept = [n for n in range(len(shards)) if n not in set(victims)]
    renumbered = np.zeros(len(shards), np.uint64)
    renumbered[kept] = np.arange(len(kept), dtype=np.uint64)
    locations = renumbered[table.shards] << np.uint64(OFFSET_BITS) | table.offsets.astype(np.uint64)
    for row, location in packing.locations(len(kept)).items():
        locations[row] = location
    refs = arrays.refs.copy()
    refs["location"] = locations[table.row_of_ref]
    new = tuple(shard.file for shard in packing.shards)
    all_shards = (*(shards[n] for n in kept), *new)
    return Rewrite(replace(arrays, refs=refs), all_shards, next_number + len(new), packing)
