"""Overview: what a dataset holds, in numbers: buckets, captions, sizes, and how much sharing saves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..format import dtype_named, variant_cells
from ..write import CheckedGeneration, existing_folder, leased_manifest, open_checked

_BAR = 32
_COMMON = 5


@dataclass(frozen=True)
class BucketCount:
    """Samples of one latent shape. `pixels` is the size of its pictures, where that is known and the same."""

    shape: tuple[int, ...]
    dtype: str
    samples: int
    pixels: tuple[int, int] | None = None

    def __str__(self) -> str:
        latent = "×".join(map(str, self.shape))
        return f"{self.pixels[0]}×{self.pixels[1]} ({latent})" if self.pixels else latent


@dataclass(frozen=True)
class FieldSize:
    """One field: how many entries samples refer to, and the bytes that would take if nothing were shared."""

    name: str
    variants: int
    entries: int
    bytes: int


@dataclass(frozen=True)
class Overview:
    """A published dataset in numbers. `blob_bytes` are stored, `bytes_unshared` is what the samples refer to."""

    path: str
    id: str
    generation: str
    samples: int
    epoch: int  # samples, each as often as it is repeated
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
    provenance: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def shared(self) -> float:
        """How many times the stored bytes the samples would take if nothing were shared."""
        return self.bytes_unshared / self.blob_bytes if self.blob_bytes else 1.0


def overview(path: str | Path) -> Overview:
    """Look at a dataset's index; tensors are not read."""
    folder = existing_folder(path)
    with leased_manifest(folder) as manifest:
        return overview_of(open_checked(folder, manifest))


def overview_of(current: CheckedGeneration) -> Overview:
    """The overview of a generation that is open already."""
    manifest, arrays, samples = current.manifest, current.arrays, current.arrays.samples
    fields = list(_fields(current))
    captions = Counter(arrays.captions.tolist())
    empty = next((n for n in captions if current.index.string(n) == ""), None)
    common = [(current.index.string(n), count) for n, count in captions.most_common(_COMMON)]
    in_set = np.bincount(samples["set"], minlength=len(manifest.sets)).tolist()
    return Overview(
        path=str(current.folder),
        id=manifest.id,
        generation=manifest.generation,
        samples=len(samples),
        epoch=int(samples["repeats"].sum()),
        entries=len(arrays.entries),
        unused=int((~current.used).sum()),
        sets=manifest.sets,
        set_samples=dict(zip(manifest.sets, in_set)),
        buckets=_buckets(manifest.buckets, samples),
        fields=fields,
        captions=len(arrays.captions),
        captions_distinct=len(captions),
        captions_empty=captions[empty] if empty is not None else 0,
        captions_common=common,
        shards=len(manifest.shards),
        shard_bytes=sum(shard.bytes for shard in manifest.shards),
        index_bytes=manifest.index_bytes,
        blob_bytes=int(current.table.nbytes.sum()),
        bytes_unshared=sum(field.bytes for field in fields),
        provenance=manifest.provenance,
    )


def bucket_chart(buckets: list[BucketCount]) -> Iterator[str]:
    """A bar for every bucket."""
    most = max((bucket.samples for bucket in buckets), default=0)
    names = list(map(str, buckets))
    width = max(map(len, names), default=0)
    for bucket, name in zip(buckets, names):
        bar = "█" * max(1, round(_BAR * bucket.samples / most))
        yield f"{name:>{width}}  {bar:{_BAR}}  {bucket.samples:,}"


def _buckets(table: tuple[dict[str, Any], ...], samples: np.ndarray) -> list[BucketCount]:
    counts = [
        BucketCount(
            shape=tuple(bucket["shape"]),
            dtype=str(dtype_named(bucket["dtype"])).removeprefix("torch."),
            samples=bucket["samples"],
            pixels=_pixels(samples["crop"][samples["bucket"] == number, 2:]),
        )
        for number, bucket in enumerate(table)
    ]
    return sorted((c for c in counts if c.samples), key=lambda c: (-c.samples, c.shape))


def _pixels(sizes: np.ndarray) -> tuple[int, int] | None:
    if not len(sizes) or not sizes[0].all() or (sizes != sizes[0]).any():
        return None
    width, height = sizes[0].tolist()
    return width, height


def _fields(current: CheckedGeneration) -> Iterator[FieldSize]:
    names, table = current.manifest.fields, current.table
    of_entry = np.bincount(table.entry_of_ref, table.nbytes[table.row_of_ref], len(current.arrays.entries))
    cells, flat = variant_cells(current.arrays, len(names))
    for number, name in enumerate(names):
        used = flat[cells % len(names) == number]
        yield FieldSize(name, len(used), len(np.unique(used)), int(of_entry[used].sum()))
