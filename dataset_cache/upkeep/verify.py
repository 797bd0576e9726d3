"""Verify: read everything in a cache once, and report what is damaged, missing, unreadable or left over."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import xxhash

from ...errors import CacheError, CacheUnreadable
from ..format import (
    ASIDE_FIELDS,
    BUILD,
    DAMAGED,
    MANIFEST,
    SHARDS,
    Manifest,
    Place,
    Storage,
    StoredFile,
    read_manifest,
    retrying,
)
from ..index import variant_cells
from ..read import find_lost
from ..write import CheckedGeneration, current_publisher, existing_storage, leased_manifest, open_checked
from .contents import file_bytes, folder_contents
from .shard_state import MISSING, UNREADABLE, Progress, ShardState, examine_shards

_READ_BYTES = 4 << 20
STRAY = "debris"  # a kind of problem, with DAMAGED, MISSING and UNREADABLE


@dataclass(frozen=True)
class Problem:
    """One problem that `verify` found. `sample` and `source` name the affected sample, if known; `drops` says that a
    repair drops it."""

    kind: str
    place: str  # a file, relative to the cache
    what: str
    sample: int | None = None
    source: str | None = None
    drops: bool = False

    def __str__(self) -> str:
        sample = "" if self.sample is None else f"sample {self.sample} ({self.source}): "
        return f"{shown_kind(self.kind)}: {self.place}: {sample}{self.what}"


def shown_kind(kind: str) -> str:
    """The kind of a problem in words. Stored and sent, the kind keeps its name."""
    return "leftover" if kind == STRAY else kind


def verify(path: Place, progress: Progress | None = None) -> Iterator[Problem]:
    """Check every file of the published generation, and look for debris. Nothing is changed.

    A file that cannot be read now is `unreadable`: what it contains is unknown, and repair refuses to drop it.
    Every referenced blob is compared with its hash, in file order. `progress` is called with (bytes done, total bytes).
    A cache in use can be verified; a lease keeps its files meanwhile.
    """
    storage = existing_storage(path)
    with ExitStack() as stack:
        try:
            manifest = stack.enter_context(leased_manifest(storage))
        except CacheError as error:
            yield Problem(_kind_of(error), MANIFEST, str(error))
            return  # without a manifest the other files cannot be checked
        if manifest is None:
            unfinished = "nothing was published here; run the save again to finish it"
            yield Problem(MISSING, MANIFEST, find_lost(storage) or unfinished)
        else:
            yield from _check_generation(storage, manifest, progress)
    yield from _find_debris(storage)


def _check_generation(storage: Storage, manifest: Manifest, progress: Progress | None) -> Iterator[Problem]:
    found = list(_remote_index_problems(storage, manifest)) if storage.is_remote else []
    if found:
        yield from found
        return
    try:
        current = retrying(lambda: open_checked(storage, manifest))
    except CacheError as error:
        kind = _kind_of(error)
        missing = [name for name in manifest.index_names if storage.stat(name) is None]
        place = next((name for name in [*missing, *manifest.index_names] if name in str(error)), manifest.index_name)
        yield Problem(MISSING if kind == DAMAGED and missing else kind, place, str(error))
        return
    for number, state in enumerate(examine_shards(current, progress)):
        yield from _problems(current, number, state)


def _remote_index_problems(storage: Storage, manifest: Manifest) -> Iterator[Problem]:
    """What is wrong with the index files at an address. Readers use local copies, which may be intact."""
    for segment in manifest.index_files:
        try:
            if retrying(lambda name=segment.file: storage.stat(name)) is None:
                yield Problem(MISSING, segment.file, "is missing; push the dataset again")
            elif retrying(lambda name=segment.file: _file_hash(storage.open(name))) != segment.hash:
                yield Problem(DAMAGED, segment.file, "its content does not match its hash; push the dataset again")
        except CacheError as error:
            yield Problem(_kind_of(error), segment.file, str(error))


def _file_hash(file: StoredFile) -> str:
    digest = xxhash.xxh3_128()
    for at in range(0, file.size, _READ_BYTES):
        digest.update(file.read(at, min(_READ_BYTES, file.size - at)))
    return digest.hexdigest()


def _problems(current: CheckedGeneration, number: int, state: ShardState) -> Iterator[Problem]:
    place = f"{SHARDS}/{current.manifest.shards[number].file}"
    if state.problem is not None:
        yield Problem(state.kind, place, state.problem)
    if len(state.damaged):
        what = "is lost with the file" if state.kind == MISSING else "its stored bytes are damaged"
        for problem in _affected(current, state):
            yield replace(problem, kind=state.kind, place=place, what=f"{problem.what} {what}")


def _kind_of(error: CacheError) -> str:
    return UNREADABLE if isinstance(error, CacheUnreadable) else DAMAGED


def _affected(current: CheckedGeneration, state: ShardState) -> Iterator[Problem]:
    """The samples, named entries and unused entries that need a damaged blob."""
    hit = state.entries(current.index.entry_count)
    fields = current.manifest.fields
    cells, flat = variant_cells(current.arrays, len(fields))
    for cell in np.unique(cells[hit[flat]]).tolist():
        sample, field = divmod(cell, len(fields))
        source = current.index.string(int(current.arrays.samples["source"][sample]))
        yield Problem(DAMAGED, "", f"{fields[field]}:", sample, source, fields[field] not in ASIDE_FIELDS)
    for name, key in current.manifest.named.items():
        entry = current.index.find_entry(bytes.fromhex(key))
        if entry is not None and hit[entry]:
            yield Problem(DAMAGED, "", f"the entry named {name!r}:")
    for entry in np.flatnonzero(hit & ~current.used).tolist():
        field = fields[int(current.arrays.entries["field"][entry])]
        yield Problem(DAMAGED, "", f"an unused entry ({field}, key {current.index.key_of(entry).hex()}):")


def _find_debris(storage: Storage) -> Iterator[Problem]:
    try:
        manifest = retrying(lambda: read_manifest(storage))
        found = folder_contents(storage, manifest, publishing=current_publisher(storage) is not None)
    except CacheUnreadable as error:
        yield Problem(UNREADABLE, BUILD, str(error))
        return
    except CacheError:  # reported before
        return
    for name in found.debris:
        yield Problem(STRAY, name, f"{file_bytes(storage, name):,} bytes that nothing needs")
