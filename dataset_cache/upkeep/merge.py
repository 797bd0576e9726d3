"""Merging: whole caches become one new cache. Entries keep their keys; nothing is encoded.

The indexes are joined as arrays, shards linked or copied as files. If the sources differ, in the given order:
- Equal keys mean equal content: an entry that an earlier source has too is taken from that one. Unused ones are left.
- Equal tensors are stored once. A sample that an earlier source has too is taken only once.
- A set or named entry of an earlier source keeps its name; a later one that differs becomes `name (folder)`.
- Provenance keeps what all sources agree on, and lists where the samples came from.
Sources whose shapes differ are refused, and so is a result in place of one of its own sources or of a cache that was
made in another way.
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CacheError
from ...quantity import plural
from ..address import Address
from ..format import Manifest, Place, ShardFile, Storage, StoredFile, plain_json, read_manifest, storage_at
from ..index import (
    BlobTable,
    IndexArrays,
    SampleFacts,
    Translation,
    alike_samples,
    blob_table,
    bucket_table,
    find_keys,
    merge_arrays,
    numbered,
    prune,
    sort_order,
    used_entries,
)
from ..read import Cache, Dataset, ShardFiles
from ..write import (
    CheckedGeneration,
    PublishLock,
    Rewrite,
    existing_storage,
    leased_manifest,
    open_checked,
    plan_rewrite,
    publish,
    remove_superseded,
    wasteful_among,
    write_packing,
)
from .copy import link_shards, require_new
from .fit import check_fit, refuse_other_origin, refuse_own_input
from .gather import Keys, MergedNames, Part, agreed_provenance, as_merge
from .shard_state import examine_shards

IF_EXISTS = ("update", "refuse")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class MergeReport:
    """The result of `merge`. `repeated` samples were in an earlier source too."""

    destination: Path | Address
    generation: str
    sources: int
    samples: int
    repeated: int
    entries: int
    renamed: tuple[str, ...]  # sets and named entries whose name was taken
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"Merged {plural(self.sources, 'cache')} into {self.destination.name}: {plural(self.samples, 'sample')}"
        return text + (f", {plural(self.repeated, 'duplicate')} skipped" if self.repeated else "")


def merge(
    sources: Sequence[Place], destination: Place, progress: Progress | None = None, if_exists: str = "refuse"
) -> MergeReport:
    """Write the samples of all `sources`, with variants, captions, sets and named entries, to a new cache.

    With `if_exists="update"`, a cache that an earlier merge made is replaced. That is the default of Merge Datasets,
    because a workflow is queued many times; here, an existing cache is refused.
    Shards are linked if possible, and copied otherwise; only those are packed again of which a part is not needed.
    `progress` is called with (samples done, total). Every tensor is first compared with its hash: a damaged source is
    refused.
    """
    if not sources:
        raise CacheError("merge: name at least one cache")
    storages = [existing_storage(source) for source in sources]
    target = storage_at(destination)
    refuse_own_input(target, [storage.path for storage in storages])
    if if_exists not in IF_EXISTS:
        raise CacheError(f"if_exists = {if_exists!r}: expected one of {', '.join(IF_EXISTS)}")
    if if_exists == "refuse":
        require_new(target)
    with ExitStack() as stack:
        opened = [_open(storage, stack) for storage in storages]
        datasets = [Cache(each.storage, each.manifest, each.index) for each in opened]
        provenance = _merged_provenance(datasets)
        refuse_other_origin(target, provenance)
        warnings = check_fit(datasets)
        names = MergedNames(rename_all=True)
        merged = _Merged.of(opened, datasets, names)
        with _locked(target):
            published = _write_merged(target, merged, names, provenance, progress)
    return MergeReport(
        destination=target.path,
        generation=published.generation,
        sources=len(opened),
        samples=published.counts["samples"],
        repeated=merged.repeated,
        entries=published.counts["entries"],
        renamed=tuple(names.renamed),
        warnings=tuple(warnings),
    )


@dataclass(frozen=True)
class _Merged:
    """The arrays of all sources in one. Its shards are those of the sources, one source after the other."""

    sources: Sequence[CheckedGeneration]
    arrays: IndexArrays
    fields: tuple[str, ...]
    buckets: tuple[tuple[str, tuple[int, ...]], ...]
    shards: tuple[ShardFile, ...]
    repeated: int

    @classmethod
    def of(cls, sources: Sequence[CheckedGeneration], datasets: Sequence[Cache], names: MergedNames) -> "_Merged":
        manifests = [source.manifest for source in sources]
        fields, field_numbers = numbered([manifest.fields for manifest in manifests])
        forms = [[(b["dtype"], tuple(b["shape"])) for b in manifest.buckets] for manifest in manifests]
        buckets, bucket_numbers = numbered(forms)
        sets = [[names.set_name(Part(dataset), name) for name in dataset.sets] for dataset in datasets]
        set_numbers = [[list(names.sets).index(name) for name in own] for own in sets]
        shards, shard_numbers = numbered([manifest.shards for manifest in manifests])
        for dataset in datasets:
            names.add_named(dataset)
        parts = [
            (
                prune(
                    source.arrays, len(source.manifest.fields), np.ones(len(source.arrays.samples), bool), source.used
                ),
                Translation(*numbers),
            )
            for source, *numbers in zip(sources, field_numbers, set_numbers, bucket_numbers, shard_numbers, strict=True)
        ]
        arrays, source_of = merge_arrays(parts, len(fields))
        repeats = _repeats(arrays, len(fields), source_of, datasets, names)
        stays = ~repeats
        arrays = prune(arrays, len(fields), stays, np.ones(len(arrays.entries), bool))
        return cls(sources, arrays, tuple(fields), tuple(buckets), tuple(shards), int(repeats.sum()))

    @cached_property
    def homes(self) -> list[tuple[ShardFiles, int]]:
        """Where each shard is: the files of a source, and its number there."""
        found: dict[ShardFile, tuple[ShardFiles, int]] = {}
        for source in self.sources:
            for number, shard in enumerate(source.manifest.shards):
                found.setdefault(shard, (source.files, number))
        return list(found.values())

    def open_shard(self, number: int) -> StoredFile:
        files, own = self.homes[number]
        return files.file(own)


def _used_arrays(source: CheckedGeneration) -> IndexArrays:
    everything = np.ones(len(source.arrays.samples), bool)
    return prune(source.arrays, len(source.manifest.fields), everything, source.used)


def _repeats(
    arrays: IndexArrays, width: int, source_of: np.ndarray, datasets: Sequence[Cache], names: MergedNames
) -> np.ndarray:
    """A mask of the samples that an earlier source has too. One that a source lists twice is kept twice."""
    repeats = np.zeros(len(arrays.samples), bool)
    seen: dict[bytes, int] = {}
    starts = np.searchsorted(source_of, np.arange(len(datasets)))
    alike = alike_samples(arrays, width, source_of) if len(datasets) > 1 else np.empty(0, np.int64)
    for number in alike.tolist():
        source = int(source_of[number])
        part = Part(datasets[source])
        facts, keys = names.describe(part, number - int(starts[source]))
        repeats[number] = seen.setdefault(_identity(facts, keys), source) < source
    return repeats


@contextmanager
def _locked(target: Storage) -> Iterator[None]:
    lock = PublishLock(target)
    try:
        yield
    finally:
        lock.release()


def _write_merged(
    target: Storage, merged: _Merged, names: MergedNames, provenance: dict[str, Any], progress: Progress | None
) -> Manifest:
    _refuse_damage(merged, progress)
    before = read_manifest(target)
    arrays = _with_twins(merged)
    table = blob_table(arrays)
    wasteful = wasteful_among(merged.shards, table, merged.open_shard)
    next_shard = max((source.manifest.next_shard for source in merged.sources), default=0)
    next_shard = max(next_shard, before.next_shard if before else 0)
    rewrite = plan_rewrite(arrays, table, merged.shards, wasteful, next_shard, merged.open_shard)
    listed = {shard.file for shard in before.shards} if before else set()
    whole = {shard.file for shard in rewrite.shards} - {shard.file.file for shard in rewrite.packing.shards} - listed
    for source in merged.sources:
        link_shards(source.storage, target, [shard for shard in source.manifest.shards if shard.file in whole])
        whole -= {shard.file for shard in source.manifest.shards}
    write_packing(target, rewrite.packing, merged.open_shard)
    draft = _draft(rewrite, merged, names, before, provenance)
    published = publish(target, rewrite.arrays, draft)
    if before is not None:
        remove_superseded(target, published)
    return published


def _draft(
    rewrite: Rewrite, merged: _Merged, names: MergedNames, before: Manifest | None, provenance: dict[str, Any]
) -> Manifest:
    arrays = rewrite.arrays
    used = used_entries(arrays, len(merged.fields), find_keys(arrays.entries, set(names.named.values())))
    return Manifest(
        id=before.id if before else secrets.token_hex(16),
        index_bytes=0,
        index_hash="",
        shards=rewrite.shards,
        counts={"samples": len(arrays.samples), "entries": len(arrays.entries), "unused": int((~used).sum())},
        fields=merged.fields,
        buckets=bucket_table({form: n for n, form in enumerate(merged.buckets)}, arrays.samples),
        sets={name: dict(facts) for name, facts in names.sets.items()},
        named={name: key.hex() for name, key in names.named.items()},
        provenance=plain_json(provenance, "provenance"),
        next_shard=rewrite.next_shard,
    )


def _refuse_damage(merged: _Merged, progress: Progress | None) -> None:
    """Compare everything that is taken over with its hash: damage is not copied."""
    total, done = sum(len(source.arrays.samples) for source in merged.sources), 0
    for source in merged.sources:
        count = len(source.arrays.samples)

        def report(read: int, of: int, done: int = done, count: int = count) -> None:
            if progress is not None and read < of:
                progress(done + count * read // of, total)

        for number, state in enumerate(examine_shards(source, report)):
            if state.problem is None and not len(state.damaged):
                continue
            table, needed = state.table, _needed_rows(source, state.table)
            rows = state.damaged[needed[state.damaged]]
            if len(rows) or (state.problem is not None and needed[table.rows_of(number)].any()):
                at = int(table.offsets[rows[0]]) if len(rows) else 0
                raise CacheError(
                    f"{source.folder}: {source.manifest.shards[number].file} is damaged at {at:,}; "
                    f'run "streamcache verify --repair {source.folder}" first'
                )
        done += count
        if progress is not None:
            progress(done, total)


def _needed_rows(source: CheckedGeneration, table: BlobTable) -> np.ndarray:
    """A mask of the blobs that a used entry needs."""
    needed = np.zeros(len(table), bool)
    needed[table.row_of_ref[source.used[table.entry_of_ref]]] = True
    return needed


def _with_twins(merged: _Merged) -> IndexArrays:
    """The arrays with references to one of several equal blobs only: the others are left behind."""
    arrays, table = merged.arrays, blob_table(merged.arrays)
    order = sort_order(table.hashes).astype(np.int64)
    halves = np.ascontiguousarray(table.hashes).view("<u8").reshape(-1, 2)[order]
    again = np.flatnonzero((halves[1:] == halves[:-1]).all(1)) + 1
    locations = table.locations.copy()
    for place in again.tolist():
        one, other = int(order[place - 1]), int(order[place])
        if table.spec_of_row[one] == table.spec_of_row[other] and _bytes(merged, table, one) == _bytes(
            merged, table, other
        ):
            locations[other] = locations[one]
    refs = arrays.refs.copy()
    refs["location"] = locations[table.row_of_ref]
    return replace(arrays, refs=refs)


def _bytes(merged: _Merged, table: BlobTable, row: int) -> bytearray:
    return merged.open_shard(int(table.shards[row])).read(int(table.offsets[row]), int(table.nbytes[row]))


def _open(storage: Storage, stack: ExitStack) -> CheckedGeneration:
    """A cache whose index is fully checked; its files are kept until the stack closes."""
    return open_checked(storage, stack.enter_context(leased_manifest(storage)))


def _merged_provenance(datasets: Sequence[Dataset]) -> dict[str, Any]:
    merged = [
        {"folder": d.path.name, "id": d.id, "generation": d.generation, "provenance": d.provenance} for d in datasets
    ]
    return as_merge(agreed_provenance(datasets), merged)


def _identity(facts: SampleFacts, keys: Keys) -> bytes:
    """A hash of everything that makes a sample what it is."""
    numbers = [*facts.original_size, *facts.crop, facts.repeats, facts.weight]
    entries = [[name, [key.hex() for key in of_field]] for name, of_field in sorted(keys.items())]
    text = json.dumps([entries, list(facts.captions), facts.source, numbers, facts.set])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
