"""Moves blobs into new shards: which blobs go where, small shards merged, unreferenced blobs left behind.

The layout of the new shards is decided before a byte is copied, so their sizes are known in advance.
"""

import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO

import numpy as np

from ...errors import CacheError
from ..format import (
    ALIGNMENT,
    BUILD,
    PAD,
    SHARD_BYTES,
    SHARDS,
    Blob,
    Place,
    ShardFile,
    Storage,
    StoredFile,
    header_hash,
    render_header,
    storage_at,
    tight_start,
)
from ..index import OFFSET_BITS, BlobTable, IndexArrays, blob_table
from ..read import ShardFiles

# A shard's header is read as a whole when the shard is first opened, so its size is limited.
MAX_HEADER = 4 << 20
SMALL_BYTES = SHARD_BYTES // 8
SMALL_COUNT = MAX_HEADER // (8 * 256)  # a shard of many tiny blobs is full before it is large
# Small shards are merged at this number: each byte is copied a few times at most, however many runs add to a cache.
SMALL_SHARDS = 8
_COPY_BYTES = 8 << 20

OpenShard = Callable[[int], StoredFile]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PackedShard:
    """A shard to be written: rows of a blob table, and the offset of each in the file."""

    file: ShardFile
    rows: tuple[int, ...]
    offsets: tuple[int, ...]
    data_start: int


@dataclass(frozen=True)
class Packing:
    """New shards for some rows of a table. `twins` maps a row to an equal row that is stored for both."""

    table: BlobTable
    shards: tuple[PackedShard, ...]
    twins: dict[int, int]

    def locations(self, first_shard: int) -> dict[int, int]:
        """Row → new location, with the new shards numbered from `first_shard` on."""
        found = {
            row: number << OFFSET_BITS | offset
            for number, shard in enumerate(self.shards, first_shard)
            for row, offset in zip(shard.rows, shard.offsets, strict=True)
        }
        return found | {row: found[twin] for row, twin in self.twins.items()}


@dataclass(frozen=True)
class Rewrite:
    """A generation after the blobs of some shards have moved into new ones."""

    arrays: IndexArrays
    shards: tuple[ShardFile, ...]
    next_shard: int
    packing: Packing


def merge_small(
    storage: Storage, arrays: IndexArrays, shards: Sequence[ShardFile], next_number: int, first: int = 0
) -> tuple[IndexArrays, list[ShardFile], int]:
    """Merge the small shards if there are many, so that small incremental runs do not leave many files.

    Those before `first` stay: other arrays refer to them too.
    """
    unchanged = arrays, list(shards), next_number
    if sum(shard.bytes < SMALL_BYTES for shard in shards[first:]) < SMALL_SHARDS:
        return unchanged
    table = blob_table(arrays)
    small = [number for number in small_shards(table, shards) if number >= first]
    if len(small) < SMALL_SHARDS:
        return unchanged
    open_shard = ShardFiles(storage, shards).file
    try:
        rewrite = plan_rewrite(arrays, table, shards, small, next_number, open_shard)
        write_packing(storage, rewrite.packing, open_shard)
    except CacheError:
        return unchanged  # a damaged shard cannot be merged, but new samples can still be published
    return rewrite.arrays, list(rewrite.shards), rewrite.next_shard


def small_shards(table: BlobTable, shards: Sequence[ShardFile]) -> list[int]:
    """The shards that are far from full, in bytes and in number of blobs."""
    counts = np.bincount(table.shards, minlength=len(shards))
    return [n for n, shard in enumerate(shards) if shard.bytes < SMALL_BYTES and counts[n] < SMALL_COUNT]


def wasteful_shards(source: ShardFiles, table: BlobTable) -> list[int]:
    """The shards with a blob that is not in the table."""
    return wasteful_among(source.shards, table, source.file)


def wasteful_among(shards: Sequence[ShardFile], table: BlobTable, open_shard: OpenShard) -> list[int]:
    """The shards with a blob that is not in the table. Each blob of a shard has a hash of its own."""
    return with_more_blobs(np.bincount(table.shards, minlength=len(shards)).tolist(), open_shard)


def with_more_blobs(live: Sequence[int], open_shard: OpenShard) -> list[int]:
    """The shards that have more blobs than these."""
    return [number for number in range(len(live)) if _blob_count(open_shard(number)) > live[number]]


def _blob_count(file: StoredFile) -> int:
    """How many blobs a shard has, by its header, whose hash was checked: a name is followed by its type."""
    size = int.from_bytes(file.read(0, 8), "little")
    header = bytes(file.read(8, size))
    return header.count(b'"dtype"') - header.count(f'"{PAD}'.encode())


def plan_rewrite(
    arrays: IndexArrays,
    table: BlobTable,
    shards: Sequence[ShardFile],
    replaced: Collection[int],
    next_number: int,
    open_shard: OpenShard,
) -> Rewrite:
    """Plan new shards for the referenced blobs of the shards `replaced`.

    The old files are kept: readers of an older generation may need them.
    """
    moving = np.flatnonzero(np.isin(table.shards, list(replaced)))
    packing = pack(table, moving.tolist(), [shard.file[0] for shard in shards], open_shard, next_number)
    kept = [n for n in range(len(shards)) if n not in set(replaced)]
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


def pack(table: BlobTable, rows: Iterable[int], kinds: Sequence[str], open_shard: OpenShard, number: int) -> Packing:
    """Plan new shards for these rows, numbered from `number` on. `kinds` has the letter of each old shard.

    Only blobs with the same hash are read, to compare them: equal ones are stored once.
    """
    growing: dict[str, _Growing] = {}
    done: list[_Growing] = []
    first: dict[bytes, int] = {}
    twins: dict[int, int] = {}
    shards, sizes = table.shards, table.nbytes
    for row in rows:
        digest = table.hashes[row].tobytes()
        twin = first.setdefault(digest, row)
        if twin != row and _read(table, twin, open_shard) == _read(table, row, open_shard):
            twins[row] = twin
            continue
        kind = kinds[int(shards[row])]
        target = growing.get(kind)
        if target is None or not target.has_room(int(sizes[row]), digest):
            target = growing[kind] = _Growing(kind)
            done.append(target)
        target.append(row, digest, int(sizes[row]), len(table.specs[table.spec_of_row[row]].shape))
    return Packing(table, tuple(shard.finish(table, n) for n, shard in enumerate(done, number)), twins)


def write_packing(place: Place, packing: Packing, open_shard: OpenShard, progress: Progress | None = None) -> None:
    """Write the new shards and move them into the cache. Nothing reads them until a manifest lists them."""
    storage, folder = storage_at(place), f"{BUILD}/compact-{secrets.token_hex(4)}"
    total, done = sum(shard.file.bytes for shard in packing.shards), 0
    try:
        storage.make_folder(SHARDS)
        storage.make_folder(folder, new=True)
        for shard in packing.shards:
            with storage.create(f"{folder}/{shard.file.file}") as file:
                _write_shard(file, shard, packing.table, open_shard)
            done += shard.file.bytes
            if progress is not None:
                progress(done, total)
        for shard in packing.shards:
            storage.move(f"{folder}/{shard.file.file}", f"{SHARDS}/{shard.file.file}")
        storage.sync(SHARDS)
    except OSError as error:
        raise CacheError(
            f"{storage.path}: cannot be rewritten: {error.strerror}; the last generation is unchanged"
        ) from error
    finally:
        storage.remove_folder(folder, content=True)
        storage.remove_folder(BUILD)  # unless a writer's segment is in it


@dataclass
class _Growing:
    """A shard being planned; offsets count from the end of its header, whose size is not known yet."""

    kind: str
    rows: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    names: set[bytes] = field(default_factory=set)
    end: int = 0
    header: int = 128

    def has_room(self, nbytes: int, digest: bytes) -> bool:
        """Blobs are named by hash, so two with the same hash need separate files."""
        return digest not in self.names and self.end + nbytes <= SHARD_BYTES and self.header + 512 <= MAX_HEADER

    def append(self, row: int, digest: bytes, nbytes: int, axes: int) -> None:
        start = self.end + -self.end % ALIGNMENT
        self.rows.append(row)
        self.starts.append(start)
        self.names.add(digest)
        self.end = start + nbytes
        self.header += 224 + 24 * axes  # upper bound for this blob and the padding before it

    def finish(self, table: BlobTable, number: int) -> PackedShard:
        draft = _placed(table, self.rows, [start + MAX_HEADER for start in self.starts])
        data_start = tight_start(draft, MAX_HEADER, MAX_HEADER + self.end)
        offsets = tuple(start + data_start for start in self.starts)
        end = data_start + self.end
        digest = header_hash(render_header(_placed(table, self.rows, offsets), data_start, end))
        file = ShardFile(f"{self.kind}-{number:05d}-{digest}.safetensors", end, digest)
        return PackedShard(file, tuple(self.rows), offsets, data_start)


def _placed(table: BlobTable, rows: Sequence[int], offsets: Sequence[int]) -> list[Blob]:
    return [Blob(b.hash, b.dtype, b.shape, at) for b, at in zip(table.blobs(rows), offsets, strict=True)]


def _read(table: BlobTable, row: int, open_shard: OpenShard) -> bytearray:
    shard, offset = int(table.shards[row]), int(table.offsets[row])
    return open_shard(shard).read(offset, int(table.nbytes[row]))


def _write_shard(file: BinaryIO, shard: PackedShard, table: BlobTable, open_shard: OpenShard) -> None:
    rows = np.array(shard.rows)
    sources, starts, sizes = table.shards[rows].tolist(), table.offsets[rows].tolist(), table.nbytes[rows].tolist()
    file.write(render_header(_placed(table, shard.rows, shard.offsets), shard.data_start, shard.file.bytes))
    for source, start, size, target in zip(sources, starts, sizes, shard.offsets, strict=True):
        file.write(bytes(target - file.tell()))
        for at in range(start, start + size, _COPY_BYTES):
            file.write(open_shard(source).read(at, min(_COPY_BYTES, start + size - at)))
