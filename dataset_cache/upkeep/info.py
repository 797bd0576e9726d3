"""What a cache contains and what it takes on disk, in numbers; and the labels of its buckets."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...errors import CacheError
from ..format import MANIFEST, SHARDS, Manifest, Place, dtype_named
from ..index import Rows, open_index
from ..read import Samples, holders, open_cache
from ..write import CheckedGeneration, current_publisher, existing_storage, leased_manifest, open_checked
from .contents import file_bytes, folder_contents, total_bytes
from .tally import count_empty, count_samples, most_common

_BAR = 32
_COMMON = 5
_PEEKED = 256  # samples: enough to learn how many pixels a latent pixel covers

Scale = tuple[int, int]  # pixels per latent pixel, across and down


# Buckets


def bucket_label(shape: Sequence[int], scale: Scale | None = None) -> str:
    """A bucket's size in pixels (width × height × frames), or its latent's shape if the scale is unknown."""
    if scale is None or not all(scale) or len(shape) < 3:
        return "×".join(map(str, shape))
    *frames, height, width = shape[1:]
    return size_label(width * scale[0], height * scale[1], *frames)


def size_label(width: int, height: int, *frames: int) -> str:
    return "×".join(map(str, (width, height, *frames)))


def bucket_labels(samples: np.ndarray, buckets: Sequence[Mapping[str, Any]]) -> list[str]:
    """A label per bucket of a manifest. The first rows of the sample table reveal the scale."""
    shapes = [tuple(bucket["shape"]) for bucket in buckets]
    scales = _bucket_scales(samples, shapes)
    return [bucket_label(shape, scale) for shape, scale in zip(shapes, scales, strict=True)]


def peek_bucket_counts(place: Place, manifest: Manifest) -> dict[str, int]:
    """The samples per bucket label, the fullest first, of a cache that is not open: little of its index is read."""
    try:
        labels = bucket_labels(open_index(place, manifest, check=False).sample_rows(0, _PEEKED), manifest.buckets)
    except (CacheError, OSError):
        labels = [bucket_label(bucket["shape"]) for bucket in manifest.buckets]
    counts: Counter[str] = Counter()
    for label, bucket in zip(labels, manifest.buckets, strict=True):
        counts[label] += bucket.get("samples", 0)
    return dict(sorted((+counts).items(), key=lambda row: (-row[1], row[0])))


def samples_by_bucket(dataset: Samples) -> dict[str, np.ndarray]:
    """The samples of a dataset by the label of their bucket, the fullest bucket first."""
    buckets, crops = dataset.buckets(), dataset.column("crop")
    scales: dict[int, Scale] = {}
    for bucket, rows in buckets.items():
        _add_scale(scales, bucket.shape, crops[rows[0]].tolist())
    groups: dict[str, np.ndarray] = {}
    for bucket, rows in buckets.items():
        label = bucket_label(bucket.shape, scales.get(bucket.shape[0]) if bucket.shape else None)
        groups[label] = np.sort(np.concatenate([groups[label], rows])) if label in groups else rows
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def samples_by_size(dataset: Samples) -> dict[str, np.ndarray]:
    """The samples of a dataset by the size in pixels that they are encoded at, the largest group first."""
    sizes, group_of = np.unique(dataset.column("crop")[:, 2:], axis=0, return_inverse=True)
    groups = {size_label(*size): np.flatnonzero(group_of == n) for n, size in enumerate(sizes.tolist())}
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def _bucket_scales(samples: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[Scale | None]:
    """The scale of each bucket. Latents with the same number of channels have the same scale."""
    scales: dict[int, Scale] = {}
    for number, crop in zip(samples["bucket"][:_PEEKED].tolist(), samples["crop"][:_PEEKED].tolist()):
        if number < len(shapes):
            _add_scale(scales, shapes[number], crop)
    return [scales.get(shape[0]) if shape else None for shape in shapes]


def _add_scale(scales: dict[int, Scale], shape: Sequence[int], crop: Sequence[int]) -> None:
    width, height = crop[2:]
    if len(shape) >= 3 and shape[-1] and shape[-2] and width > 0 and height > 0:
        scales.setdefault(shape[0], (width // shape[-1], height // shape[-2]))


# Overview


@dataclass(frozen=True)
class BucketCount:
    """The samples of one latent shape. `pixels` is the size of their images, if known."""

    shape: tuple[int, ...]
    dtype: str
    samples: int
    pixels: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        return size_label(*self.pixels, *self.shape[1:-2]) if self.pixels else bucket_label(self.shape)

    def __str__(self) -> str:
        return f"{self.label} ({bucket_label(self.shape)})" if self.pixels else self.label


@dataclass(frozen=True)
class FieldSize:
    """One field: the entries that samples refer to, and their bytes if nothing were shared."""

    name: str
    variants: int
    entries: int
    bytes: int


@dataclass(frozen=True)
class Overview:
    """A published cache in numbers. `blob_bytes` are stored, `bytes_unshared` is what the samples refer to.

    `bytes_shared` is the part of `blob_bytes` that the samples need: without unused and named entries. Conditionings
    would take `bytes_untrimmed`, each entry counted once; `bytes_trimmed` of that is padding that is not stored.
    """

    path: str
    id: str
    generation: str
    samples: int
    epoch: int  # samples with their repeats
    entries: int
    unused: int
    sets: dict[str, dict[str, Any]]
    set_samples: dict[str, int]
    buckets: list[BucketCount]
    fields: list[FieldSize]
    captions: int
    captions_distinct: int
    captions_empty: int
    captions_common: list[tuple[str, int]]
    shards: int
    shard_bytes: int
    index_bytes: int
    blob_bytes: int
    bytes_unshared: int
    bytes_shared: int
    bytes_untrimmed: int
    bytes_trimmed: int
    provenance: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def shared(self) -> float:
        """How many times their stored bytes the samples would take if nothing were shared; never below 1."""
        return self.bytes_unshared / self.bytes_shared if self.bytes_shared else 1.0


def overview(path: Place) -> Overview:
    """Describe a cache from its index; tensors are not read."""
    storage = existing_storage(path)
    with leased_manifest(storage) as manifest:
        return overview_of(open_checked(storage, manifest))


def overview_of(current: CheckedGeneration) -> Overview:
    """The overview of a generation that is open already."""
    manifest, index, tally = current.manifest, current.index, count_samples(current)
    stored, trimmed = _text_bytes(current)
    blob_bytes, shared = _blob_bytes(current, np.any(tally.uses, 0))
    return Overview(
        path=str(current.folder),
        id=manifest.id,
        generation=manifest.generation,
        samples=index.sample_count,
        epoch=tally.epoch,
        entries=index.entry_count,
        unused=int((~current.used).sum()),
        sets=manifest.sets,
        set_samples=dict(zip(manifest.sets, tally.sets.tolist())),
        buckets=_bucket_counts(manifest.buckets, index.sample_rows(0, _PEEKED)),
        fields=list(map(FieldSize, manifest.fields, tally.variants.tolist(), tally.entries, tally.bytes.tolist())),
        captions=int(tally.captions.sum()),
        captions_distinct=int(np.count_nonzero(tally.captions)),
        captions_empty=count_empty(index, tally.captions),
        captions_common=most_common(index, tally.captions, _COMMON),
        shards=len(manifest.shards),
        shard_bytes=sum(shard.bytes for shard in manifest.shards),
        index_bytes=manifest.whole_index_bytes,
        blob_bytes=blob_bytes,
        bytes_unshared=int(tally.bytes.sum()),
        bytes_shared=shared,
        bytes_untrimmed=stored + trimmed,
        bytes_trimmed=trimmed,
        provenance=manifest.provenance,
    )


def bucket_chart(buckets: Sequence[BucketCount]) -> Iterator[str]:
    """One bar per bucket, as text."""
    most = max((bucket.samples for bucket in buckets), default=0)
    names = list(map(str, buckets))
    width = max(map(len, names), default=0)
    for bucket, name in zip(buckets, names):
        bar = "█" * max(1, round(_BAR * bucket.samples / most))
        yield f"{name:>{width}}  {bar:{_BAR}}  {bucket.samples:,}"


def _bucket_counts(table: Sequence[Mapping[str, Any]], samples: np.ndarray) -> list[BucketCount]:
    shapes = [tuple(bucket["shape"]) for bucket in table]
    counts = [
        BucketCount(
            shape=shape,
            dtype=str(dtype_named(bucket["dtype"])).removeprefix("torch."),
            samples=bucket["samples"],
            pixels=(shape[-1] * scale[0], shape[-2] * scale[1]) if scale and all(scale) and len(shape) >= 3 else None,
        )
        for bucket, shape, scale in zip(table, shapes, _bucket_scales(samples, shapes), strict=True)
    ]
    return sorted((c for c in counts if c.samples), key=lambda c: (-c.samples, c.shape))


def _blob_bytes(current: CheckedGeneration, needed: np.ndarray) -> tuple[int, int]:
    """The bytes of all blobs, each counted once, and of those that one of the needed entries has."""
    total = shared = 0
    for _, table in current.tables():
        rows = np.zeros(len(table), bool)
        rows[table.row_of_ref[needed[table.entry_of_ref]]] = True
        total += int(table.nbytes.sum())
        shared += int(table.nbytes[rows].sum())
    return total, shared


def _text_bytes(current: CheckedGeneration) -> tuple[int, int]:
    """The bytes of all conditionings as stored, and those that were trimmed from them."""
    names, index = current.manifest.fields, current.index
    if "conditioning" not in names:
        return 0, 0
    layouts = [index.layout(n) for n in range(index.lengths["layout_ends"])]
    used = np.zeros(len(layouts), np.int64)
    for entries in Rows(index.files, "entries").chunks():
        texts = entries[entries["field"] == names.index("conditioning")]
        used += np.bincount(texts["layout"], minlength=len(layouts))
    counts = list(zip(used.tolist(), layouts, strict=True))
    stored = sum(count * sum(spec.nbytes for spec in layout.specs) for count, layout in counts)
    return stored, sum(count * layout.saved for count, layout in counts)


# Disk usage


@dataclass(frozen=True)
class Usage:
    """Bytes by purpose. `fields` and `unused` count tensors, each once; the others count files."""

    published: str
    fields: dict[str, int]
    unused: int  # tensors that only unused entries refer to
    index: int
    shards: int
    older: int
    older_generations: int
    building: int
    debris: int
    missing: tuple[str, ...]  # shards that are missing or truncated
    readers: tuple[str, ...]
    writer: str | None


def usage(path: Place) -> Usage:
    """Measure a cache from its index and its folder listing; tensors are not read."""
    storage = existing_storage(path)
    # Before this process takes a lease itself.
    readers, writer = tuple(str(holder) for holder in holders(storage)), current_publisher(storage)
    with leased_manifest(storage) as manifest:
        if manifest is None:
            open_cache(storage)  # raises, and reports how far a build came
            raise CacheError(f"{storage.path}: was published a moment ago; try again")
        return usage_of(open_checked(storage, manifest), readers, writer)


def _date(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # a file can have any date
        return "unknown"


def usage_of(current: CheckedGeneration, readers: tuple[str, ...], writer: str | None) -> Usage:
    """The usage of a generation that is open already."""
    manifest, sizes = current.manifest, _bytes_by_owner(current)
    storage, published = current.storage, current.storage.stat(MANIFEST)
    found = folder_contents(storage, manifest, publishing=writer is not None)
    return Usage(
        published=_date(published.modified if published else 0),
        fields=dict(zip(manifest.fields, sizes)),
        unused=sizes[-1],
        index=manifest.whole_index_bytes,
        shards=sum(shard.bytes for shard in manifest.shards),
        older=total_bytes(storage, found.superseded),
        older_generations=len(found.old_indexes),
        building=total_bytes(storage, found.building),
        debris=total_bytes(storage, found.debris),
        missing=tuple(
            shard.file for shard in manifest.shards if file_bytes(storage, f"{SHARDS}/{shard.file}") != shard.bytes
        ),
        readers=readers,
        writer=writer,
    )


def _bytes_by_owner(current: CheckedGeneration) -> list[int]:
    """The bytes of the blobs that used entries of each field need, each counted once; then those that none does."""
    fields, field_of_entry = len(current.manifest.fields), Rows(current.index.files, "entries", "field")
    found = np.zeros(fields + 1, np.int64)
    for _, table in current.tables():
        owners = np.full(len(table), fields, np.int64)
        live = current.used[table.entry_of_ref]
        owners[table.row_of_ref[live]] = field_of_entry.take(table.entry_of_ref[live])
        np.add.at(found, owners, table.nbytes)
    return found.tolist()
