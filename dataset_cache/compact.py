"""Compaction: blobs of several shards are copied into fewer, and what nothing refers to is left behind."""

import secrets
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from . import files
from .files import ShardFiles
from .index import OFFSET_BITS, IndexArrays
from .segment import FOLDER, BuildShard, publish_shard, remove_segment
from .shard import PAD, SHARD_BYTES, Blob, ShardFile, ShardWriter, read_header
from .storage import sync_folder

SMALL_BYTES = SHARD_BYTES // 8
SMALL_SHARDS = (
    8  # so many small shards are merged: each byte is copied a few times at most, however many runs add to a set
)


def merge_small(
    dataset: Path, arrays: IndexArrays, shards: Sequence[ShardFile], next_number: int
) -> tuple[IndexArrays, list[ShardFile], int]:
    """Merge the small shards if there are many, so that small incremental runs leave no litter."""
    small = [n for n, shard in enumerate(shards) if shard.bytes < SMALL_BYTES]
    if len(small) < SMALL_SHARDS:
        return arrays, list(shards), next_number
    return rewrite(dataset, arrays, shards, small, next_number)


def rewrite(
    dataset: Path, arrays: IndexArrays, shards: Sequence[ShardFile], victims: Collection[int], next_number: int
) -> tuple[IndexArrays, list[ShardFile], int]:
    """Copy what is referred to in `victims` into new shards that take their place.

    Returns arrays and shards for the next generation; the old files stay for readers of the old one.
    """
    refs = arrays.refs.copy()
    numbers = (refs["location"] >> np.uint64(OFFSET_BITS)).astype(np.int64)
    moving = np.isin(numbers, list(victims))
    old_locations = np.unique(refs["location"][moving])
    copier = _Copier(dataset, ShardFiles(dataset, shards), next_number)
    try:
        new_places = [
            copier.copy(int(place) >> OFFSET_BITS, int(place) & (1 << OFFSET_BITS) - 1) for place in old_locations
        ]
        new_shards = copier.finish()
    finally:
        copier.close()
    kept = [n for n in range(len(shards)) if n not in set(victims)]
    renumbered = np.zeros(len(shards), np.uint64)
    renumbered[kept] = np.arange(len(kept), dtype=np.uint64)
    offsets = refs["location"] & np.uint64((1 << OFFSET_BITS) - 1)
    locations = renumbered[numbers] << np.uint64(OFFSET_BITS) | offsets
    if len(old_locations):
        moved = np.array([copier.location(place, len(kept)) for place in new_places], np.uint64)
        locations[moving] = moved[np.searchsorted(old_locations, refs["location"][moving])]
    refs["location"] = locations
    return replace(arrays, refs=refs), [shards[n] for n in kept] + new_shards, copier.next_number


class _Copier:
    """Appends blobs of old shards to new ones, one blob in memory at a time."""

    def __init__(self, dataset: Path, source: ShardFiles, next_number: int) -> None:
        self._dataset, self._source, self.next_number = dataset, source, next_number
        self._folder = dataset / FOLDER / f"compact-{secrets.token_hex(4)}"
        self._blobs: dict[int, dict[int, Blob]] = {}
        self._shards: list[BuildShard] = []
        self._places: dict[bytes, tuple[int, int]] = {}

    def copy(self, shard: int, offset: int) -> tuple[int, int]:
        """Returns (number among the new shards, offset there), before headers are cut to size."""
        blob = self._listed(shard)[offset]
        data = self._source.file(shard).read(offset, blob.nbytes)
        found = self._places.get(blob.hash)
        if found is not None and self._shards[found[0]].read(found[1], blob.nbytes) == data:
            return found
        target = self._target(self._source.shards[shard].file[0], len(data), apart=found is not None)
        copied = self._shards[target].writer.append(blob.hash, blob.dtype, blob.shape, memoryview(data))
        self._places.setdefault(blob.hash, (target, copied.offset))
        return target, copied.offset

    def finish(self) -> list[ShardFile]:
        result = []
        for shard in self._shards:
            publish_shard(shard, self._dataset, self.next_number)
            self.next_number += 1
            digest = shard.file.split("-")[2].split(".")[0]
            result.append(ShardFile(shard.file, shard.path.stat().st_size, digest))
        if result:
            sync_folder(self._dataset / files.FOLDER)
        return result

    def location(self, place: tuple[int, int], first: int) -> int:
        number, offset = place
        return (first + number) << OFFSET_BITS | offset - self._shards[number].shift

    def close(self) -> None:
        for shard in self._shards:
            if shard.writer is not None:
                shard.writer.close()
        remove_segment(self._folder)

    def _listed(self, shard: int) -> dict[int, Blob]:
        """The blobs of an old shard by their offset."""
        if shard not in self._blobs:
            header, start = read_header(self._source.file(shard))
            self._blobs[shard] = {
                start + info["data_offsets"][0]: _blob(name, info, start)
                for name, info in header.items()
                if not name.startswith(PAD)
            }
        return self._blobs[shard]

    def _target(self, kind: str, nbytes: int, apart: bool) -> int:
        for number in reversed(range(len(self._shards))):
            shard = self._shards[number]
            if shard.kind == kind and not apart and shard.writer.has_room(nbytes):
                return number
        self._folder.mkdir(parents=True, exist_ok=True)
        number = len(self._shards)
        shard = BuildShard(f"{self._folder.name}/{number}", self._folder / f"{number}", kind)
        shard.writer = ShardWriter(shard.path)
        shard.blobs = shard.writer.blobs
        self._shards.append(shard)
        return number


def _blob(name: str, info: dict, start: int) -> Blob:
    shape = tuple(info["shape"])
    if info["dtype"] == "F4":
        shape = (*shape[:-1], shape[-1] // 2)
    return Blob(bytes.fromhex(name), info["dtype"], shape, start + info["data_offsets"][0])
