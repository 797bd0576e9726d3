"""Verify and repair: read all shards once, report damaged and missing data, publish a generation without it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..errors import CacheError
from ..format import (
    ASIDE_FIELDS,
    DAMAGED,
    MANIFEST,
    MAX_HEADER_BYTES,
    SHARDS,
    Blob,
    BlobTable,
    Manifest,
    Place,
    ShardFile,
    Storage,
    StoredFile,
    blob_table,
    hash_start,
    header_hash,
    prune,
    read_manifest,
    remember_dropped,
    variant_cells,
)
from ..write import (
    CheckedGeneration,
    current_publisher,
    existing_storage,
    leased_manifest,
    open_checked,
    open_exclusive,
    plan_rewrite,
    publish,
    write_packing,
)
from .contents import file_bytes, folder_contents
from .info import plural

MISSING, STRAY = "missing", "debris"  # kinds of problems, with DAMAGED
_READ_BYTES = 4 << 20

Progress = Callable[[int, int], None]  # called with (bytes done, total bytes)


@dataclass(frozen=True)
class Problem:
    """One problem that `verify` found. `sample` and `source` name the affected sample, if known."""

    kind: str
    place: str  # a file, relative to the cache
    what: str
    sample: int | None = None
    source: str | None = None

    def __str__(self) -> str:
        sample = "" if self.sample is None else f"sample {self.sample} ({self.source}): "
        return f"{self.kind}: {self.place}: {sample}{self.what}"


@dataclass(frozen=True)
class RepairReport:
    """What was dropped: samples with their source, the number of entries, and names of named entries."""

    path: Path
    generation: str
    samples: tuple[tuple[int, str], ...]
    entries: int
    names: tuple[str, ...]
    shards: tuple[str, ...]  # files that were replaced or dropped

    def __str__(self) -> str:
        if not self.entries and not self.shards:
            return f"{self.path.name}: nothing to repair"
        return (
            f"Dropped {plural(len(self.samples), 'sample')} and {plural(self.entries, 'entry')} from {self.path.name}, "
            f"replaced {len(self.shards):,} shards; encode again to restore them"
        )


def verify(path: Place, progress: Progress | None = None) -> Iterator[Problem]:
    """Check every file of the published generation, and look for debris. Nothing is changed.

    Every referenced blob is compared with its hash, in file order. `progress` is called with (bytes done, total bytes).
    A cache in use can be verified; a lease keeps its files meanwhile.
    """
    storage = existing_storage(path)
    try:
        read_manifest(storage)
    except CacheError as error:
        yield Problem(DAMAGED, MANIFEST, str(error))
        return  # without a manifest the other files cannot be checked
    with leased_manifest(storage) as manifest:
        if manifest is None:
            yield Problem(MISSING, MANIFEST, "nothing was published here; run the save again to finish it")
        else:
            yield from _check_generation(storage, manifest, progress)
    yield from _find_debris(storage)


def repair(path: Place, progress: Progress | None = None) -> RepairReport:
    """Publish a generation without the damaged entries and the samples that need them. Intact data is kept.

    A sample that lost only its thumbnail is kept. The keys of dropped entries are remembered as damaged. The files of
    the damaged generation remain until they are cleaned as superseded. Refused if the manifest or index is damaged
    (nothing else says what belongs together), or if shards were swapped (renaming them loses nothing).
    """
    with open_exclusive(path) as current:
        states = _examine_all(current, progress)
        rows = np.concatenate([np.empty(0, np.int64), *(state.damaged for state in states)])
        bad = [n for n, state in enumerate(states) if state.problem is not None]
        if not len(rows) and not bad:
            return RepairReport(current.folder, current.manifest.generation, (), 0, (), ())
        return _publish_rest(current, current.table.entries_using(rows, len(current.arrays.entries)), bad)


# Examining shards


@dataclass(frozen=True)
class _ShardState:
    """The problem of the file as a whole, if any, and the rows of its damaged blobs.

    Blobs can be intact in a file with a damaged header: they are compared with the index, which has place and hash.
    """

    problem: str | None
    missing: bool
    damaged: np.ndarray
    swapped_with: str | None = None


class _Meter:
    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def advance(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)


def _examine(current: CheckedGeneration, progress: Progress | None) -> Iterator[_ShardState]:
    """The state of each shard in turn; each file is read once from front to back."""
    meter = _Meter(int(current.table.nbytes.sum()), progress)
    for number in range(len(current.manifest.shards)):
        yield _examine_shard(current, number, meter)


def _examine_shard(current: CheckedGeneration, number: int, meter: _Meter) -> _ShardState:
    shards, table = current.manifest.shards, current.table
    shard, rows = shards[number], table.rows_of(number)
    name = f"{SHARDS}/{shard.file}"
    try:
        file = current.storage.open(name)
    except CacheError as error:
        meter.advance(int(table.nbytes[rows].sum()))
        return _ShardState(str(error), current.storage.stat(name) is None, rows)
    found = _header_hash(file)
    twin = None if found == shard.hash else next((other.file for other in shards if other.hash == found), None)
    problem = _file_problem(file, shard, found, twin)
    return _ShardState(problem, False, _damaged_rows(file, table, rows, meter), twin)


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
            if _blob_hash(file, blob) != blob.hash:
                damaged.append(row)
        except CacheError:  # the file is too short, or the disk cannot read it
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
    except CacheError:
        return None


# Reporting problems


def _check_generation(storage: Storage, manifest: Manifest, progress: Progress | None) -> Iterator[Problem]:
    try:
        current = open_checked(storage, manifest)
    except CacheError as error:
        kind = MISSING if storage.stat(manifest.index_name) is None else DAMAGED
        yield Problem(kind, manifest.index_name, str(error))
        return
    for number, state in enumerate(_examine(current, progress)):
        yield from _problems(current, number, state)


def _problems(current: CheckedGeneration, number: int, state: _ShardState) -> Iterator[Problem]:
    place = f"{SHARDS}/{current.manifest.shards[number].file}"
    kind = MISSING if state.missing else DAMAGED
    if state.problem is not None:
        yield Problem(kind, place, state.problem)
    if len(state.damaged):
        what = "is lost with the file" if state.missing else "its stored bytes are damaged"
        for problem in _affected(current, state.damaged):
            yield replace(problem, kind=kind, place=place, what=f"{problem.what} {what}")


def _affected(current: CheckedGeneration, rows: np.ndarray) -> Iterator[Problem]:
    """The samples, named entries and unused entries that need one of these blobs."""
    hit = current.table.entries_using(rows, len(current.arrays.entries))
    fields = current.manifest.fields
    cells, flat = variant_cells(current.arrays, len(fields))
    for cell in np.unique(cells[hit[flat]]).tolist():
        sample, field = divmod(cell, len(fields))
        source = current.index.string(int(current.arrays.samples["source"][sample]))
        yield Problem(DAMAGED, "", f"{fields[field]}:", sample, source)
    for name, key in current.manifest.named.items():
        entry = current.index.find_entry(bytes.fromhex(key))
        if entry is not None and hit[entry]:
            yield Problem(DAMAGED, "", f"the entry named {name!r}:")
    for entry in np.flatnonzero(hit & ~current.used).tolist():
        field = fields[int(current.arrays.entries["field"][entry])]
        yield Problem(DAMAGED, "", f"an unused entry ({field}, key {current.index.key_of(entry).hex()}):")


def _find_debris(storage: Storage) -> Iterator[Problem]:
    try:
        manifest = read_manifest(storage)
    except CacheError:
        return
    found = folder_contents(storage, manifest, publishing=current_publisher(storage) is not None)
    for name in found.debris:
        yield Problem(STRAY, name, f"{file_bytes(storage, name):,} bytes that nothing needs")


# Repairing


def _examine_all(current: CheckedGeneration, progress: Progress | None) -> list[_ShardState]:
    states = list(_examine(current, progress))
    for shard, state in zip(current.manifest.shards, states, strict=True):
        if state.swapped_with is not None:
            raise CacheError(f"{current.folder / SHARDS / shard.file}: {state.problem}, then nothing is lost")
    return states


def _publish_rest(current: CheckedGeneration, damaged: np.ndarray, bad: Sequence[int]) -> RepairReport:
    manifest = current.manifest
    lost = _lost_samples(current, damaged)
    keys = {current.index.key_of(entry) for entry in np.flatnonzero(damaged).tolist()}
    named = {name: key for name, key in manifest.named.items() if bytes.fromhex(key) not in keys}
    arrays = prune(current.arrays, len(manifest.fields), ~lost, ~damaged)
    open_shard = _open_unchecked(current)
    rewrite = plan_rewrite(arrays, blob_table(arrays), manifest.shards, bad, manifest.next_shard, open_shard)
    write_packing(current.storage, rewrite.packing, open_shard)
    extra = remember_dropped(manifest.extra, sorted(keys), DAMAGED)
    draft = current.successor(rewrite.arrays, rewrite.shards, rewrite.next_shard, named, extra=extra)
    published = publish(current.storage, rewrite.arrays, draft)
    sources = current.arrays.samples["source"]
    samples = tuple((n, current.index.string(int(sources[n]))) for n in np.flatnonzero(lost).tolist())
    names = tuple(name for name in manifest.named if name not in named)
    shards = tuple(manifest.shards[n].file for n in bad)
    return RepairReport(current.folder, published.generation, samples, len(keys), names, shards)


def _open_unchecked(current: CheckedGeneration) -> Callable[[int], StoredFile]:
    """Opens shards without a check of their header: every blob that is read was compared with its hash before."""
    opened: dict[int, StoredFile] = {}

    def open_shard(number: int) -> StoredFile:
        if number not in opened:
            opened.clear()
            opened[number] = current.storage.open(f"{SHARDS}/{current.manifest.shards[number].file}")
        return opened[number]

    return open_shard


def _lost_samples(current: CheckedGeneration, damaged: np.ndarray) -> np.ndarray:
    """A mask of the samples that need a damaged entry for training. A lost thumbnail does not count."""
    fields = current.manifest.fields
    cells, flat = variant_cells(current.arrays, len(fields))
    needed = np.array([name not in ASIDE_FIELDS for name in fields], bool)
    lost = np.zeros(len(current.arrays.samples), bool)
    if len(cells):
        hit = cells[damaged[flat] & needed[cells % len(fields)]]
        lost[hit // len(fields)] = True
    return lost
