"""The state of a cache's shards: each file is read once, and every blob compared with its hash."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ...errors import CacheError, CacheUnreadable
from ..format import DAMAGED, MAX_HEADER_BYTES, SHARDS, Blob, ShardFile, StoredFile, hash_start, header_hash, retrying
from ..index import BlobTable
from ..write import CheckedGeneration

MISSING, UNREADABLE = "missing", "unreadable"  # what is wrong with a file, if it is not DAMAGED
_READ_BYTES = 4 << 20
_READABLE = "make it readable and try again; if the disk is failing, move this file away first"

Progress = Callable[[int, int], None]  # called with (bytes done, total bytes)


@dataclass(frozen=True)
class ShardState:
    """The problem of the file as a whole, if any, its kind, and the damaged blobs, as rows of a table with all of its.

    Blobs can be intact in a file with a damaged header: they are compared with the index, which has place and hash.
    """

    problem: str | None
    kind: str
    damaged: np.ndarray
    table: BlobTable
    swapped_with: str | None = None

    def entries(self, entry_count: int) -> np.ndarray:
        """A mask of the entries that need a damaged blob."""
        return self.table.entries_using(self.damaged, entry_count)


def examine_shards(current: CheckedGeneration, progress: Progress | None) -> Iterator[ShardState]:
    """The state of each shard in turn; each file is read once from front to back."""
    meter = _Meter(sum(shard.bytes for shard in current.manifest.shards), progress)
    done = 0
    for shards, table in current.tables():
        for number in shards:
            yield _examine_shard(current, number, table, meter)
            done += current.manifest.shards[number].bytes
            meter.reach(done)


class _Meter:
    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def advance(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)

    def reach(self, done: int) -> None:
        if done != self._done:
            self.advance(done - self._done)


def _examine_shard(current: CheckedGeneration, number: int, table: BlobTable, meter: _Meter) -> ShardState:
    shards = current.manifest.shards
    shard, rows = shards[number], table.rows_of(number)
    name = f"{SHARDS}/{shard.file}"
    try:
        if retrying(lambda: current.storage.stat(name)) is None:
            return ShardState("is missing", MISSING, rows, table)
        file = retrying(lambda: current.storage.open(name))
        found = retrying(lambda: _header_hash(file))
        twin = None if found == shard.hash else next((other.file for other in shards if other.hash == found), None)
        problem = _file_problem(file, shard, found, twin)
        return ShardState(problem, DAMAGED, _damaged_rows(file, table, rows, meter), table, twin)
    except CacheUnreadable as error:
        return ShardState(f"{error}; {_READABLE}", UNREADABLE, rows[:0], table)
    except CacheError as error:
        return ShardState(str(error), DAMAGED, rows, table)


def _file_problem(file: StoredFile, shard: ShardFile, found: str | None, twin: str | None) -> str | None:
    if twin is not None:
        return f"contains the data of {twin}; rename the two files back"
    if file.size != shard.bytes:
        return f"has {file.size:,} bytes, {shard.bytes:,} expected"
    return None if found == shard.hash else f"its header does not match its hash {shard.hash[:8]}…"


def _damaged_rows(file: StoredFile, table: BlobTable, rows: np.ndarray, meter: _Meter) -> np.ndarray:
    damaged = []
    for row, blob in zip(rows.tolist(), table.blobs(rows), strict=True):
        try:
            if retrying(lambda blob=blob: _blob_hash(file, blob)) != blob.hash:
                damaged.append(row)
        except CacheUnreadable:
            raise
        except CacheError:  # the file is too short
            damaged.append(row)
        meter.advance(blob.nbytes)
    return np.array(damaged, np.int64)


def _blob_hash(file: StoredFile, blob: Blob) -> bytes:
    digest = hash_start(blob.dtype, blob.shape)
    end = blob.offset + blob.nbytes
    for at in range(blob.offset, end, _READ_BYTES):
        digest.update(file.read(at, min(_READ_BYTES, end - at)))
    return digest.digest()


def _header_hash(file: StoredFile) -> str | None:
    try:
        size = int.from_bytes(file.read(0, 8), "little") + 8
        return header_hash(bytes(file.read(0, size))) if size <= min(file.size, MAX_HEADER_BYTES) else None
    except CacheUnreadable:
        raise
    except CacheError:  # shorter than the length of a header
        return None
