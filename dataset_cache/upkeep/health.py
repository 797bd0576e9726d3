"""The health of a shard: whether its file is there and the right one, and which of its blobs are damaged."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import CacheError
from ..format import MAX_HEADER_BYTES, SHARDS, Blob, BlobTable, OpenFile, ShardFile, hash_start, header_hash

_READ_BYTES = 4 << 20

Progress = Callable[[int, int], None]  # called with (bytes done, bytes in all)


@dataclass(frozen=True)
class Health:
    """What is wrong with the file as a whole, if anything, and the rows of damaged blobs.

    Blobs can be well in a file whose header is not: they are compared with the index, which knows place and hash.
    """

    wrong: str | None
    missing: bool
    damaged: np.ndarray
    swapped_with: str | None = None


def examine(
    folder: Path, shards: Sequence[ShardFile], table: BlobTable, progress: Progress | None = None
) -> Iterator[Health]:
    """The health of every shard in turn; each is read once from front to back."""
    meter = _Meter(int(table.nbytes.sum()), progress)
    for number, shard in enumerate(shards):
        yield _examine(folder / SHARDS / shard.file, shards, number, table, meter)


class _Meter:
    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def advance(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)


def _examine(path: Path, shards: Sequence[ShardFile], number: int, table: BlobTable, meter: _Meter) -> Health:
    shard, rows = shards[number], table.rows_of(number)
    try:
        file = OpenFile(path)
    except CacheError as error:
        meter.advance(int(table.nbytes[rows].sum()))
        return Health(str(error), not path.exists(), rows)
    found = _header_hash(file)
    twin = None if found == shard.hash else next((other.file for other in shards if other.hash == found), None)
    wrong = None
    if twin is not None:
        wrong = f"holds the content of {twin}; give the files their names back"
    elif file.size != shard.bytes:
        wrong = f"has {file.size:,} bytes, {shard.bytes:,} expected"
    elif found != shard.hash:
        wrong = f"its header does not match its hash {shard.hash[:8]}…"
    return Health(wrong, False, _damaged(file, table, rows, meter), twin)


def _damaged(file: OpenFile, table: BlobTable, rows: np.ndarray, meter: _Meter) -> np.ndarray:
    damaged = []
    for row, blob in zip(rows.tolist(), table.blobs(rows), strict=True):
        try:
            if _hash(file, blob) != blob.hash:
                damaged.append(row)
        except CacheError:  # it ends too early, or the disk cannot read it
            damaged.append(row)
        meter.advance(blob.nbytes)
    return np.array(damaged, np.int64)


def _hash(file: OpenFile, blob: Blob) -> bytes:
    digest = hash_start(blob.dtype, blob.shape)
    end = blob.offset + blob.nbytes
    for at in range(blob.offset, end, _READ_BYTES):
        digest.update(file.read(at, min(_READ_BYTES, end - at)))
    return digest.digest()


def _header_hash(file: OpenFile) -> str | None:
    try:
        size = int.from_bytes(file.read(0, 8), "little") + 8
        return header_hash(bytes(file.read(0, size))) if size <= min(file.size, MAX_HEADER_BYTES) else None
    except CacheError:
        return None
