"""A cache: one generation of a dataset. Tensors are read when they are used."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast, overload

import numpy as np
import torch

from ...errors import CacheError
from ..address import Address
from ..ahead import Traffic
from ..format import (
    ASIDE_FIELDS,
    Key,
    LazyTensor,
    Manifest,
    Place,
    Split,
    TensorSpec,
    blob_hash,
    digest_key,
    dtype_named,
    storage_at,
    tensor_bytes,
)
from ..index import COLUMNS, Index, guarded, open_index, split_location
from .batch import BatchReader
from .buffers import BatchBuffers
from .dataset import Batch, Bucket, Fields, Sample
from .leases import Lease
from .shard_files import ShardFiles
from .subset import Subset


def _open_generation(path: str, manifest: Manifest, check: bool) -> "Cache":
    """Open a generation that another process has open: newer ones may have been published since."""
    storage = storage_at(path)
    lease = Lease(storage, manifest.generation)
    try:
        return Cache(storage, manifest, open_index(storage, manifest, check or None), lease, check)
    except CacheError as error:
        lease.release()
        raise CacheError(f"generation {manifest.generation[:12]} cannot be opened again: {error}") from error


class _Closed:
    """Takes the place of what a closed cache has closed."""

    def __init__(self, path: Path | Address) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        raise CacheError(f"{self._path}: this cache is closed; open it again")


class Cache(Sequence[Sample]):
    """One generation of a dataset. It does not change, whatever is published later.

    `open_cache` opens the published one, and protects its files with a lease. Without a lease they stay only as long as
    the caller keeps them, and reading fails once they are gone.
    """

    encoded = True

    def __init__(
        self, place: Place, manifest: Manifest, index: Index, lease: Lease | None = None, check: bool = False
    ) -> None:
        storage = storage_at(place)
        self.path = storage.path
        self.manifest = manifest
        self.id, self.generation = manifest.id, manifest.generation
        self.provenance, self.sets, self.fields = manifest.provenance, manifest.sets, manifest.fields
        self.named = {name: bytes.fromhex(key) for name, key in manifest.named.items()}
        self._set_names = list(manifest.sets)
        self._index = index
        self._files = ShardFiles(storage, manifest.shards, lease)
        # What comes over a network is compared with the hashes of its blobs.
        self._check = check = check or self._files.ahead is not None
        self._buckets = [Bucket(tuple(b["shape"]), dtype_named(b["dtype"])) for b in manifest.buckets]
        self._batches = BatchReader(index, self._files, self.fields, check)
        self._batch_fields = tuple(name for name in self.fields if name not in ASIDE_FIELDS)

    def __len__(self) -> int:
        return self._index.sample_count

    @overload
    def __getitem__(self, i: int) -> Sample: ...
    @overload
    def __getitem__(self, i: slice) -> Subset: ...
    def __getitem__(self, i: int | slice) -> Sample | Subset:
        """A sample, or a view of some samples."""
        return self._part(i) if isinstance(i, slice) else self.sample(i)

    def __iter__(self) -> Iterator[Sample]:
        return (self.sample(i) for i in range(len(self)))

    def __repr__(self) -> str:
        count = self.manifest.counts["samples"]
        return f"<Cache {self.path.name}: {count:,} samples, generation {self.generation[:12]}>"

    def __enter__(self) -> "Cache":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files and end the lease. Tensors that were not read yet can no longer be."""
        self._files.close()
        self._index = self._batches = cast(Any, _Closed(self.path))

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process opens the same generation, with its own files and its own lease."""
        if isinstance(self._index, _Closed):
            raise CacheError(f"{self.path}: this cache is closed and cannot be copied; open it again")
        return _open_generation, (str(self.path), self.manifest, self._check)

    def _part(self, chosen: slice) -> Subset:
        return Subset(self, np.arange(len(self))[chosen])

    @guarded
    def sample(self, i: int, variants: Mapping[str, int] | None = None) -> Sample:
        """Sample `i` with lazy tensors. `variants` selects one of several entries per field, by default the first."""
        i = self._checked(i)
        chosen = variants or {}
        facts = self._index.sample_facts(i, self._set_names)
        entries = dict(zip(self.fields, self._index.entries_of(i, len(self.fields)), strict=True))
        names = tuple(name for name in self.fields if entries[name])
        return Sample(
            index=i,
            fields=Fields(
                names, lambda name: self._structure(_pick(entries[name], chosen.get(name, 0), name, i), name, i)
            ),
            caption=_caption(facts["captions"], chosen.get("conditioning", 0)),
            **facts,
        )

    def read_batch(
        self,
        indices: Sequence[int],
        *,
        variants: Mapping[str, Sequence[int]] | None = None,
        fields: Sequence[str] | None = None,
        buffers: BatchBuffers | None = None,
    ) -> Batch:
        """Read samples of one bucket. `variants` has, per field, one number per row.

        Tensors are new, or are in `buffers` until the next batch is read into them.
        """
        names = self._batch_fields if fields is None else self._known(fields)
        rows = [int(i) for i in indices]
        if not rows:
            raise CacheError("a batch needs at least one sample")
        chosen = variants or {}
        return self._batches.read(rows, names, chosen, buffers, partial(self._captions, rows, chosen))

    def _known(self, fields: Sequence[str]) -> tuple[str, ...]:
        unknown = [name for name in fields if name not in self.fields]
        if unknown:
            raise CacheError(f"{self.path.name}: has no field {unknown[0]!r}; available: {', '.join(self.fields)}")
        return tuple(fields)

    def buffers(self, rows: int, pin: bool = False) -> BatchBuffers:
        """Reusable memory for `read_batch`, for batches of up to `rows` samples. Each batch in use needs its own."""
        return BatchBuffers(rows, pin)

    @guarded
    def will_need(self, indices: Sequence[int], variants: Mapping[str, Sequence[int]] | None = None) -> None:
        """Tell the system that these samples will be read soon, if it accepts such hints."""
        chosen = variants or {}
        for b, i in enumerate(indices):
            number = self._checked(int(i))
            entries = self._index.entries_of(number, len(self.fields))
            for name, choices in zip(self.fields, entries, strict=True):
                if choices and name in self._batch_fields:
                    pick = chosen[name][b] if name in chosen else 0
                    for location, spec in self._blobs(_pick(choices, pick, name, number)):
                        shard, offset = split_location(location)
                        self._files.file(shard).will_need(offset, spec.nbytes)

    def coming(
        self, batches: Iterable[tuple[Sequence[int], Mapping[str, Sequence[int]]]], fields: Sequence[str] | None = None
    ) -> None:
        """Say which batches will be read, with these fields, in order, for as long as the order is known.

        A remote cache fetches them ahead and keeps local copies by when they are needed again; a local one ignores it.
        After an empty order, nothing more comes.
        """
        ahead, reader = self._files.ahead, self._batches
        if ahead is not None:
            names = self._batch_fields if fields is None else self._known(fields)
            ahead.come(reader.ranges([int(i) for i in indices], names, chosen) for indices, chosen in batches)

    @property
    def traffic(self) -> Traffic | None:
        """What reading has cost so far; None for a cache on a disk."""
        return None if self._files.ahead is None else self._files.ahead.traffic

    def buckets(self) -> dict[Bucket, np.ndarray]:
        """The samples of each bucket, in order."""
        numbers = self._index.column("bucket")
        order = np.argsort(numbers, kind="stable")
        edges = np.searchsorted(numbers[order], np.arange(len(self._buckets) + 1))
        groups = [order[start:end] for start, end in pairwise(edges)]
        pairs = zip(self._buckets, groups, strict=True)
        return {replace(bucket, pixels=self._pixels(group[0])): group for bucket, group in pairs if len(group)}

    def _pixels(self, i: int) -> tuple[int, int] | None:
        """The size of a sample's image as it was encoded, if that was recorded."""
        row = self._index.sample_row(int(i))
        width, height = row.crop_width, row.crop_height
        return (width, height) if width > 0 and height > 0 else None

    def column(self, name: str) -> np.ndarray:
        """A column over all samples: bucket, set, repeats, weight, original_size or crop. Read-only, mapped."""
        if name not in COLUMNS:
            raise CacheError(f"no column {name!r}; available: {', '.join(COLUMNS)}")
        return self._index.column(name)

    def variants(self, field: str) -> np.ndarray:
        """The number of variants of a field per sample; 0 if the sample lacks it."""
        if field not in self.fields:
            return np.zeros(len(self), "<u4")
        return self._index.variant_counts(self.fields.index(field))

    @guarded
    def find_sources(self, names: Sequence[str]) -> dict[str, list[int]]:
        """The samples of each of these sources, in order."""
        return self._index.find_sources(names)

    @guarded
    def source(self, i: int) -> str:
        return self._index.string(self._index.sample_row(self._checked(i)).source)

    @guarded
    def captions(self, i: int) -> list[str]:
        return list(self._index.captions(self._index.sample_row(self._checked(i))))

    @guarded
    def keys(self, i: int) -> dict[str, list[bytes]]:
        """The keys of a sample's entries by field, one per variant."""
        entries = self._index.entries_of(self._checked(i), len(self.fields))
        named = zip(self.fields, entries, strict=True)
        return {name: [self._index.key_of(entry) for entry in found] for name, found in named if found}

    def has(self, key: Key) -> bool:
        return self._index.find_entry(digest_key(key)) is not None

    @guarded
    def entry(self, key: Key) -> Any:
        """The structure stored under a key, with lazy tensors."""
        found = self._index.find_entry(digest_key(key))
        if found is None:
            raise CacheError(f"{self.path}: no entry is stored under the key {key!r}")
        return self._structure(found, "entry", None)

    @guarded
    def stored_entry(self, key: Key) -> tuple[str, Split]:
        """The field and the parts of an entry as stored, each tensor compared with its hash. No codec is needed."""
        index, entry = self._index, self._index.find_entry(digest_key(key))
        if entry is None:
            raise CacheError(f"{self.path}: no entry is stored under the key {key!r}")
        row = index.entry_row(entry)
        tensors = [self._load_checked(row.refs + n, *blob) for n, blob in enumerate(self._blobs(entry))]
        parts = Split(index.layout_text(row.layout), index.leaves_of(entry), tensors)
        return self.fields[row.field], parts

    def _load_checked(self, ref: int, location: int, spec: TensorSpec) -> torch.Tensor:
        shard, offset = split_location(location)
        self._files.check_range(shard, offset, spec.nbytes)
        tensor = _load(self._files, shard, offset, spec, None, "")
        if blob_hash(tensor_bytes(tensor), spec.dtype, spec.shape) != self._index.hash_of(ref):
            raise CacheError(
                f"{self.path}: {self.manifest.shards[shard].file} is damaged at {offset:,}; "
                f'run "streamcache verify --repair {self.path}" first'
            )
        return tensor

    def _checked(self, i: int) -> int:
        count = len(self)
        number = i + count if i < 0 else i
        if not 0 <= number < count:
            raise IndexError(f"sample {i} does not exist: the dataset has {count}")
        return number

    def _blobs(self, entry: int) -> list[tuple[int, TensorSpec]]:
        row = self._index.entry_row(entry)
        specs = self._index.layout(row.layout).specs
        return list(zip(self._index.locations(row.refs, len(specs)), specs, strict=True))

    @guarded
    def _structure(self, entry: int, field: str, sample: int | None) -> Any:
        row = self._index.entry_row(entry)
        layout = self._index.layout(row.layout)
        locations = self._index.locations(row.refs, len(layout.specs))
        # Only damage is reported with its place, and only a check finds it.
        place = self._place(field, sample) if self._check else ""
        tensors = [
            self._lazy(row.refs + n, location, spec, place)
            for n, (location, spec) in enumerate(zip(locations, layout.specs, strict=True))
        ]
        leaves, start = self._index.leaves_at(row.leaves)
        return layout.read(tuple(tensors), leaves, start)

    def _place(self, field: str, sample: int | None) -> str:
        return field if sample is None else f"sample {sample} ({self.source(sample)}), {field}"

    def _lazy(self, ref: int, location: int, spec: TensorSpec, place: str) -> LazyTensor:
        shard, offset = split_location(location)
        self._files.check_range(shard, offset, spec.nbytes)
        digest = self._index.hash_of(ref) if self._check else None
        load = partial(_load, self._files, shard, offset, spec, digest, place)
        return LazyTensor(spec.shape, dtype_named(spec.dtype), load)

    def _captions(self, indices: Sequence[int], variants: Mapping[str, Sequence[int]]) -> list[str]:
        chosen = variants.get("conditioning") or [0] * len(indices)
        return [_caption(self.captions(int(i)), pick) for i, pick in zip(indices, chosen, strict=True)]


def _load(
    files: ShardFiles, shard: int, offset: int, spec: TensorSpec, digest: bytes | None, place: str
) -> torch.Tensor:
    tensor = torch.empty(spec.shape, dtype=dtype_named(spec.dtype))
    if spec.nbytes:
        view = tensor.reshape(-1).view(torch.uint8).numpy().data
        files.read(shard, offset, [view], spec.nbytes)
        if digest is None or blob_hash(view, spec.dtype, spec.shape) == digest:
            return tensor
        if files.forget([(shard, offset, spec.nbytes)]):
            files.read(shard, offset, [view], spec.nbytes)
        if blob_hash(view, spec.dtype, spec.shape) != digest:
            raise CacheError(f"{place}: its stored bytes are damaged; encode the sample again, or drop it with repair")
    return tensor


def _pick(entries: Sequence[int], chosen: int, field: str, sample: int) -> int:
    if not 0 <= chosen < len(entries):
        raise CacheError(f"sample {sample}: variant {chosen} of {field} does not exist, it has {len(entries)}")
    return entries[chosen]


def _caption(captions: Sequence[str], variant: int) -> str:
    """The caption of a conditioning variant; a single caption applies to all of them."""
    if not captions:
        return ""
    return captions[variant] if variant < len(captions) else captions[0]
