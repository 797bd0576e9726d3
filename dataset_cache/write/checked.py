"""A published generation opened with every check, for code that writes the next one.

`open_checked` compares the index with its hash and proves it consistent: every number points to something that exists,
and every array is in order. Readers skip this; a writer must not carry damage into the next generation.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CacheError, CacheUnreadable
from ..address import Address
from ..format import (
    DAMAGED,
    MANIFEST,
    NO_BUCKET,
    SHARDS,
    BlobTable,
    Index,
    IndexArrays,
    Layout,
    Manifest,
    Place,
    ShardFile,
    Storage,
    blob_table,
    bucket_table,
    derive,
    find_keys,
    index_in_memory,
    layout_texts,
    open_index,
    prune,
    read_manifest,
    remember_dropped,
    retrying,
    sort_order,
    storage_at,
    unpack_variants,
    used_entries,
    variant_cells,
)
from ..read import Lease, ShardFiles, refuse_lost
from .publishing import PublishLock
from .repack import plan_rewrite

_ATTEMPTS = 10


@dataclass(frozen=True)
class CheckedGeneration:
    """A generation whose index matches its hash and is consistent."""

    storage: Storage
    manifest: Manifest
    index: Index

    @property
    def folder(self) -> Path | Address:
        return self.storage.path

    @property
    def arrays(self) -> IndexArrays:
        return self.index.arrays

    @cached_property
    def table(self) -> BlobTable:
        return blob_table(self.arrays)

    @cached_property
    def files(self) -> ShardFiles:
        return ShardFiles(self.storage, self.manifest.shards)

    @cached_property
    def used(self) -> np.ndarray:
        """A mask of the entries that a sample or a name uses."""
        named = find_keys(self.arrays.entries, map(bytes.fromhex, self.manifest.named.values()))
        return used_entries(self.arrays, len(self.manifest.fields), named)

    def successor(
        self,
        arrays: IndexArrays,
        shards: Sequence[ShardFile],
        next_shard: int,
        named: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> Manifest:
        """Draft the manifest of a generation with these arrays and shards; `publish` adds the index's size and hash."""
        manifest = self.manifest
        named = dict(manifest.named if named is None else named)
        by_name = find_keys(arrays.entries, {bytes.fromhex(key) for key in named.values()})
        used = used_entries(arrays, len(manifest.fields), by_name)
        counts = {"samples": len(arrays.samples), "entries": len(arrays.entries), "unused": int((~used).sum())}
        numbers = {(b["dtype"], tuple(b["shape"])): n for n, b in enumerate(manifest.buckets)}
        return replace(
            manifest,
            shards=tuple(shards),
            next_shard=next_shard,
            named=named,
            counts={**manifest.counts, **counts},
            buckets=bucket_table(numbers, arrays.samples),
            **changes,
        )


def open_checked(place: Place, manifest: Manifest | None) -> CheckedGeneration:
    """Open the published generation with every check that needs no tensor bytes."""
    storage = storage_at(place)
    folder = storage.path
    if manifest is None:
        refuse_lost(storage)
        raise CacheError(f"{folder}: {MANIFEST} is missing; this is not a StreamCache cache, or it was never published")
    remedy = "restore it from a copy, or remove the cache and save it again"
    try:
        index = open_index(storage, manifest, check=True)
    except CacheUnreadable:
        raise
    except CacheError as error:
        raise CacheError(f"{folder}: cannot use its index: {error}; {remedy}") from error
    problem = find_inconsistency(manifest, index.arrays)
    if problem is not None:
        raise CacheError(f"{folder / manifest.index_name}: {problem}; {remedy}")
    return CheckedGeneration(storage, manifest, index)


def lost_shards(storage: Storage, shards: Sequence[ShardFile]) -> list[int]:
    """The numbers of the shards that are missing or have another size than they should: one look at each, no read."""
    found = [storage.stat(f"{SHARDS}/{shard.file}") for shard in shards]
    return [n for n, status in enumerate(found) if status is None or status[:2] != ("file", shards[n].bytes)]


def without_lost_shards(current: CheckedGeneration) -> CheckedGeneration:
    """The generation without lost shards, their entries and all samples, in memory only; itself if none is lost.

    The keys of these entries are remembered as damaged, and a writer that starts from this stores them again.
    """
    manifest, width = current.manifest, len(current.manifest.fields)
    lost = lost_shards(current.storage, manifest.shards)
    if not lost:
        return current
    rows = np.concatenate([current.table.rows_of(n) for n in lost])
    damaged = current.table.entries_using(rows, len(current.arrays.entries))
    arrays = prune(current.arrays, width, np.zeros(len(current.arrays.samples), bool), ~damaged)
    left = plan_rewrite(
        arrays, blob_table(arrays), manifest.shards, lost, manifest.next_shard, ShardFiles(current.storage, ()).file
    )
    keys = [current.index.key_of(entry) for entry in np.flatnonzero(damaged).tolist()]
    extra = remember_dropped(manifest.extra, keys, DAMAGED)
    draft = current.successor(left.arrays, left.shards, left.next_shard, named={}, extra=extra)
    return CheckedGeneration(current.storage, draft, index_in_memory(derive(left.arrays, width), width))


@contextmanager
def open_exclusive(place: Place) -> Iterator[CheckedGeneration]:
    """The published generation, while no other process can publish."""
    storage = existing_storage(place)
    lock = PublishLock(storage)
    try:
        yield open_checked(storage, read_manifest(storage))
    finally:
        lock.release()


@contextmanager
def leased_manifest(place: Place) -> Iterator[Manifest | None]:
    """The manifest of the published generation; its files are not removed inside the `with` block."""
    storage = storage_at(place)
    for _ in range(_ATTEMPTS):
        manifest = retrying(lambda: read_manifest(storage))
        if manifest is None:
            yield None
            return
        lease = Lease(storage, manifest.generation)
        try:
            # Check again now that the lease exists: a writer that published before it may not have seen it.
            latest = retrying(lambda: read_manifest(storage))
            if latest is not None and latest.generation == manifest.generation:
                yield manifest
                return
        finally:
            lease.release()
    raise CacheError(f"{storage.path}: was republished {_ATTEMPTS} times while it was being opened")


def existing_storage(place: Place) -> Storage:
    storage = storage_at(place)
    if not storage.exists():
        raise CacheError(f"{storage.path}: no such cache")
    return storage


def find_inconsistency(manifest: Manifest, arrays: IndexArrays) -> str | None:
    """The first inconsistency of an index, or None. Each check relies on the ones before it."""
    try:
        for check in (_texts, _entries, _references, _samples, _names, _keys, _buckets, _derived):
            for problem in check(manifest, arrays):
                return problem
    except CacheError as error:
        return str(error)
    return None


def _texts(manifest: Manifest, arrays: IndexArrays) -> Iterator[str]:
    for name, texts, ends in (
        ("layouts", arrays.layouts, arrays.layout_ends),
        ("strings", arrays.strings, arrays.string_ends),
    ):
        if not _ascending(ends) or (int(ends[-1]) if len(ends) else 0) != len(texts):
            yield f"the ends of the {name} are not in order"
    try:
        arrays.layouts.tobytes().decode()
        arrays.strings.tobytes().decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        yield f"its texts are not UTF-8: {error}"


def _entries(manifest: Manifest, arrays: IndexArrays) -> Iterator[str]:
    entries = arrays.entries
    counts = np.array([len(Layout(text).specs) for text in layout_texts(arrays)], np.int64)
    if not _below(entries["layout"], len(counts)) or not _below(entries["field"], len(manifest.fields)):
        yield "an entry has a layout or a field that does not exist"
        return
    needed = counts[entries["layout"].astype(np.int64)]
    starts = np.cumsum(needed) - needed
    if not np.array_equal(entries["refs"], starts) or needed.sum() != len(arrays.refs):
        yield "the references of the entries are not in order"
    leaves = np.append(entries["leaves"], np.uint64(len(arrays.leaves)))
    if not _ascending(leaves) or (len(entries) and leaves[0] != 0):
        yield "the leaves of the entries are not in order"
    if manifest.counts.get("entries") != len(entries):
        yield f"it has {len(entries)} entries, {manifest.counts.get('entries')} expected from the manifest"


def _references(manifest: Manifest, arrays: IndexArrays) -> Iterator[str]:
    table = blob_table(arrays)
    if not _below(table.shards, len(manifest.shards)):
        yield "a reference names a shard that does not exist"
        return
    sizes = np.array([shard.bytes for shard in manifest.shards], np.int64)
    if len(table) and (table.offsets + table.nbytes > sizes[table.shards]).any():
        yield "a reference points past the end of its shard"


def _samples(manifest: Manifest, arrays: IndexArrays) -> Iterator[str]:
    samples, width = arrays.samples, len(manifest.fields)
    starts = samples["variants"].astype(np.int64)
    if not _below(samples["variants"], len(arrays.variants) - width + 1):
        yield "a sample's variants start past the end"
        return
    counts = arrays.variants[starts[:, None] + np.arange(width)].sum(1, dtype=np.int64)
    lengths = counts + width
    if not np.array_equal(starts, np.cumsum(lengths) - lengths) or lengths.sum() != len(arrays.variants):
        yield "the variants of the samples are not in order"
        return
    if not _below(unpack_variants(arrays, width)[1], len(arrays.entries)):
        yield "a sample uses an entry that does not exist"
    ends = samples["captions"] + samples["caption_count"]
    if not _below(ends, len(arrays.captions) + 1) or (ends < samples["captions"]).any():
        yield "a sample's captions extend past the end"
    strings = len(arrays.string_ends)
    if not _below(arrays.captions, strings) or not _below(samples["source"], strings):
        yield "a caption or source name does not exist"
    if not _below(samples["set"], len(manifest.sets)):
        yield "a sample belongs to a set that does not exist"


def _names(manifest: Manifest, arrays: IndexArrays) -> Iterator[str]:
    for name, key in manifest.named.items():
        if not find_keys(arrays.entries, [bytes.fromhex(key)]):
            yield f"the entry named {name!r} does not exist"


def _keys(manifest: Manifest, arrays: IndexArrays) -> Iterator[str]:
    keys = np.ascontiguousarray(arrays.entries["key"])
    halves = keys.view("<u8").reshape(-1, 2)[sort_order(keys)]
    if len(halves) > 1 and (halves[1:] == halves[:-1]).all(1).any():
        yield "two entries have the same key"


def _derived(manifest: Manifest, arrays: IndexArrays) -> Iterator[str]:
    """Orders and routes match the arrays that they are derived from."""
    expected = derive(arrays, len(manifest.fields))
    for name in ("row_layouts", "routes", "entry_order", "ref_order"):
        if not np.array_equal(getattr(expected, name), getattr(arrays, name)):
            yield f"its array {name!r} does not match the others"


def _buckets(manifest: Manifest, arrays: IndexArrays) -> Iterator[str]:
    """Each sample is in the bucket of its latents' shape and dtype."""
    if "latent" not in manifest.fields or not len(arrays.samples):
        return
    numbers = {(b["dtype"], tuple(b["shape"])): n for n, b in enumerate(manifest.buckets)}
    of_layout = np.array([_bucket(Layout(text), numbers) for text in layout_texts(arrays)], np.int64)
    field = manifest.fields.index("latent")
    cells, flat = variant_cells(arrays, len(manifest.fields))
    latents = cells % len(manifest.fields) == field
    stated = arrays.samples["bucket"].astype(np.int64)[cells[latents] // len(manifest.fields)]
    found = of_layout[arrays.entries["layout"].astype(np.int64)[flat[latents]]]
    if (stated != found).any():
        yield "a sample is in a bucket whose shape differs from its latent"


def _bucket(layout: Layout, numbers: dict[tuple[str, tuple[int, ...]], int]) -> int:
    slot = layout.slot_at("samples")
    if slot is None:
        return NO_BUCKET
    spec = layout.specs[slot]
    return numbers.get((spec.dtype, spec.shape[1:]), -1)


def _ascending(values: np.ndarray) -> bool:
    return len(values) < 2 or bool((values[1:] >= values[:-1]).all())


def _below(values: np.ndarray | Sequence[int], limit: int) -> bool:
    return not len(values) or (limit > 0 and int(np.max(values)) < limit)
