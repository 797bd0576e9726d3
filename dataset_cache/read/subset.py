"""A subset: some samples of a cache, in a given order, as a dataset. Nothing is copied."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np

from ...errors import CacheError
from ..ahead import Traffic
from ..format import Key, Split
from .buffers import BatchBuffers
from .dataset import Batch, Bucket, Dataset, Sample


class Subset(Sequence[Sample]):
    """A dataset of selected samples. Samples and batches are numbered within the subset."""

    encoded = True

    def __init__(self, cache: Dataset, indices: Sequence[int] | np.ndarray) -> None:
        self.cache = cache
        self.indices = np.array(indices, np.int64).reshape(-1)
        if len(self.indices) and not 0 <= self.indices.min() <= self.indices.max() < len(cache):
            raise CacheError(f"{cache.path.name}: the subset selects samples beyond its {len(cache):,}")
        self.indices.flags.writeable = False
        self.path, self.id, self.manifest = cache.path, cache.id, cache.manifest
        self.provenance, self.sets, self.fields, self.named = cache.provenance, cache.sets, cache.fields, cache.named
        self.generation = subset_generation(cache.generation, self.indices)

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, i: int) -> Sample: ...
    @overload
    def __getitem__(self, i: slice) -> "Subset": ...
    def __getitem__(self, i: int | slice) -> "Sample | Subset":
        return Subset(self.cache, self.indices[i]) if isinstance(i, slice) else self.sample(i)

    def __iter__(self) -> Iterator[Sample]:
        return (self.sample(i) for i in range(len(self)))

    def __repr__(self) -> str:
        return f"<Subset of {self.cache!r}: {len(self):,} samples>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Subset, (self.cache, self.indices)

    def sample(self, i: int, variants: Mapping[str, int] | None = None) -> Sample:
        number = range(len(self))[i]
        return replace(self.cache.sample(int(self.indices[number]), variants), index=number)

    def read_batch(
        self,
        indices: Sequence[int],
        *,
        variants: Mapping[str, Sequence[int]] | None = None,
        fields: Sequence[str] | None = None,
        buffers: BatchBuffers | None = None,
    ) -> Batch:
        rows = [int(i) for i in indices]
        batch = self.cache.read_batch(self._rows(rows), variants=variants, fields=fields, buffers=buffers)
        return Batch(rows, batch.latents, batch.fields, lambda: batch.captions)

    def buffers(self, rows: int, pin: bool = False) -> BatchBuffers:
        return self.cache.buffers(rows, pin)

    def will_need(self, indices: Sequence[int], variants: Mapping[str, Sequence[int]] | None = None) -> None:
        self.cache.will_need(self._rows(indices), variants)

    def coming(
        self,
        batches: Iterable[tuple[Sequence[int], Mapping[str, Sequence[int]]]],
        fields: Sequence[str] | None = None,
    ) -> None:
        self.cache.coming(((self._rows(indices), variants) for indices, variants in batches), fields)

    @property
    def traffic(self) -> Traffic | None:
        return self.cache.traffic

    def buckets(self) -> dict[Bucket, np.ndarray]:
        """The subset's samples of each bucket, in order."""
        numbers = self.cache.column("bucket")
        known = {int(numbers[rows[0]]): bucket for bucket, rows in self.cache.buckets().items()}
        own = numbers[self.indices]
        groups = {bucket: np.flatnonzero(own == number) for number, bucket in known.items()}
        return {bucket: rows for bucket, rows in groups.items() if len(rows)}

    def column(self, name: str) -> np.ndarray:
        return self.cache.column(name)[self.indices]

    def variants(self, field: str) -> np.ndarray:
        return self.cache.variants(field)[self.indices]

    def source(self, i: int) -> str:
        return self.cache.source(int(self.indices[i]))

    def captions(self, i: int) -> list[str]:
        return self.cache.captions(int(self.indices[i]))

    def keys(self, i: int) -> dict[str, list[bytes]]:
        return self.cache.keys(int(self.indices[i]))

    def has(self, key: Key) -> bool:
        return self.cache.has(key)

    def entry(self, key: Key) -> Any:
        return self.cache.entry(key)

    def stored_entry(self, key: Key) -> tuple[str, Split]:
        return self.cache.stored_entry(key)

    def _rows(self, indices: Sequence[int]) -> list[int]:
        return self.indices[np.asarray(indices, np.int64)].tolist()


def subset_generation(generation: str, indices: np.ndarray) -> str:
    """Identifies a subset: the generation of its cache and the selected samples."""
    return hashlib.blake2b(generation.encode() + indices.tobytes(), digest_size=16).hexdigest()
