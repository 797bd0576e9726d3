"""Packing: which blobs stand where in new shards. It is decided before a byte is copied, so sizes are known ahead."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import CacheError
from ..format import (
    ALIGNMENT,
    BUILD,
    OFFSET_BITS,
    SHARD_BYTES,
    SHARDS,
    Blob,
    BlobTable,
    OpenFile,
    ShardFile,
    header_hash,
    move_file,
    render_header,
    sync_folder,
    tight_start,
)

# A header is as large as it must be, within bounds: it is read as a whole when its shard is first opened.
MAX_HEADER = 4 << 20
_COPY_BYTES = 8 << 20

OpenShard = Callable[[int], OpenFile]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PackedShard:
    """A shard that is to be written: rows of a blob table, and where in the file each of them starts."""

    file: ShardFile
    rows: tuple[int, ...]
    offsets: tuple[int, ...]
    data_start: int


@dataclass(frozen=True)
class Packing:
    """New shards for some rows of a table. `twins` leads from a row to an equal one, whose copy stands for both."""

    table: BlobTable
    shards: tuple[PackedShard, ...]
    twins: dict[int, int]

    def locations(self, first_shard: int) -> dict[int, int]:
        """Row → its new location, if the new shards are numbered from `first_shard` on."""
        found = {
            row: number << OFFSET_BITS | offset
            for number, shard in enumerate(self.shards, first_shard)
            for row, offset in zip(shard.rows, shard.offsets, strict=True)
        }
        return found | {row: found[twin] for row, twin in self.twins.items()}


def pack(table: BlobTable, rows: Iterable[int], kinds: Sequence[str], open_shard: OpenShard, number: int) -> Packing:
    """Decide on new shards for these rows, numbered from `number` on. `kinds` has a letter for each old shard.

    Only blobs of equal hash are read, to see whether they are equal: such twins are stored once.
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
        kind = kinds[shards[row]]
        target = growing.get(kind)
        if target is None or not target.has_room(int(sizes[row]), digest):
            target = growing[kind] = _Growing(kind)
            done.append(target)
        target.append(row, digest, int(sizes[row]), len(table.specs[table.spec_of_row[row]].shape))
    return Packing(table, tuple(shard.finish(table, n) for n, shard in enumerate(done, number)), twins)


def write_packing(dataset: Path, packing: Packing, open_shard: OpenShard, progress: Progress | None = None) -> None:
    """Write the new shards and move them among those of `dataset`. They count once a manifest lists them."""
    folder = dataset / BUILD / f"compact-{secrets.token_hex(4)}"
    total, done = sum(shard.file.bytes for shard in packing.shards), 0
    try:
        (dataset / SHARDS).mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True)
        for shard in packing.shards:
            _write_shard(folder / shard.file.file, shard, packing.table, open_shard)
            done += shard.file.bytes
            if progress is not None:
                progress(done, total)
        for shard in packing.shards:
            move_file(folder / shard.file.file, dataset / SHARDS / shard.file.file)
        sync_folder(dataset / SHARDS)
    except OSError as error:
        raise CacheError(f"{dataset}: cannot be rewritten: {error.strerror}; the last generation stays") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # the segment of a writer is there
            folder.parent.rmdir()


@dataclass
class _Growing:
    """A shard in the making, its positions counted from the end of a header whose size is not known yet."""

    kind: str
    rows: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    names: set[bytes] = field(default_factory=set)
    end: int = 0
    header: int = 128

    def has_room(self, nbytes: int, digest: bytes) -> bool:
        """Blobs are named by hash, so two with one hash cannot share a file."""
        return digest not in self.names and self.end + nbytes <= SHARD_BYTES and self.header + 512 <= MAX_HEADER

    def append(self, row: int, digest: bytes, nbytes: int, axes: int) -> None:
        start = self.end + -self.end % ALIGNMENT
        self.rows.append(row)
        self.starts.append(start)
        self.names.add(digest)
        self.end = start + nbytes
        self.header += 224 + 24 * axes  # what this blob, and a pad before it, take at most

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


def _write_shard(path: Path, shard: PackedShard, table: BlobTable, open_shard: OpenShard) -> None:
    rows = np.array(shard.rows)
    sources, starts, sizes = table.shards[rows].tolist(), table.offsets[rows].tolist(), table.nbytes[rows].tolist()
    with open(path, "wb") as file:
        file.write(render_header(_placed(table, shard.rows, shard.offsets), shard.data_start, shard.file.bytes))
        for source, start, size, target in zip(sources, starts, sizes, shard.offsets, strict=True):
            file.write(bytes(target - file.tell()))
            for at in range(start, start + size, _COPY_BYTES):
                file.write(open_shard(source).read(at, min(_COPY_BYTES, start + size - at)))
        file.flush()
        os.fsync(file.fileno())
