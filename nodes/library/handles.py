"""Datasets as nodes pass them on: the handle of a cache, or the plan of a dataset that is not encoded yet.

Both are small and immutable. A handle opens its cache only while it is used; so do the lazy tensors made from one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from ...dataset_cache import (
    Address,
    CacheError,
    Dataset,
    Encoder,
    ImageEncoder,
    LazyTensor,
    Manifest,
    Plan,
    Samples,
    Settings,
    Source,
    Subset,
    iter_tensors,
    make_plan,
    map_tensors,
    read_manifest,
)
from .open_caches import opened

# How a field that a dataset lacks gets into it.
_REMEDIES = {
    "conditioning": "connect a CLIP to Encode Dataset and save it again",
    "latent": "connect a VAE to Encode Dataset and save it again",
    "mask": "choose masks on Image Folder Dataset and save it again",
}
_ANY = "save it again with this field"


@dataclass(frozen=True)
class DatasetHandle:
    """One generation of a cache, or some of its samples."""

    encoded: ClassVar[Literal[True]] = True
    name: str
    path: Path | Address
    generation: str
    indices: np.ndarray | None = field(default=None, compare=False, repr=False)  # None: all

    def open(self) -> Dataset:
        """The dataset. While the caller keeps it, a lease protects its files from cleaning."""
        cache = opened(self.path, self.generation)
        return cache if self.indices is None else Subset(cache, self.indices)

    def samples(self) -> Samples:
        """The samples to look at."""
        return self.open()

    def select(self, indices: np.ndarray) -> DatasetHandle:
        """A handle of some of these samples."""
        chosen = indices if self.indices is None else self.indices[indices]
        return DatasetHandle(self.name, self.path, self.generation, chosen)

    def saved(self) -> DatasetHandle:
        return self

    def __len__(self) -> int:
        return len(self.open()) if self.indices is None else len(self.indices)


@dataclass(frozen=True, eq=False)
class DatasetPlan:
    """What to encode and how. Each use scans the sources again."""

    encoded: ClassVar[Literal[False]] = False
    sources: tuple[Source, ...]
    image_encoder: ImageEncoder | None
    text_encoder: Encoder | None
    settings: Settings

    def plan(self) -> Plan:
        return make_plan(
            list(self.sources),
            image_encoder=self.image_encoder,
            text_encoder=self.text_encoder,
            settings=self.settings,
        )

    def samples(self) -> Samples:
        """The samples to look at, as they will be encoded."""
        return self.plan()

    def saved(self) -> DatasetHandle:
        raise CacheError("this dataset is not encoded yet; put Streamable Cache Save between Encode Dataset and here")


def handle_of(name: str, path: Path | Address, manifest: Manifest | None = None) -> DatasetHandle:
    """A handle of the generation that is published at `path` now, or of the one with this manifest."""
    return DatasetHandle(name, path, (manifest or published_manifest(path, name)).generation)


def published_generation(path: Path | Address, name: str) -> str:
    return published_manifest(path, name).generation


def published_manifest(path: Path | Address, name: str) -> Manifest:
    manifest = read_manifest(path)
    if manifest is None:
        raise CacheError(f"cache {name} was never finished; run the workflow that saves it again")
    return manifest


def lazy_field(handle: DatasetHandle, number: int, name: str) -> Any:
    """A field of a sample with tensors that open the cache when they are read, and keep nothing open until then."""
    structure = handle.open().sample(number).fields.get(name)
    if structure is None:
        source = handle.open().source(number)
        raise CacheError(f"sample {number} ({source}) of {handle.name} has no {name}; {_REMEDIES.get(name, _ANY)}")
    count = -1

    def detach(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, LazyTensor):
            return tensor
        nonlocal count
        count += 1
        return LazyTensor(tuple(tensor.shape), tensor.dtype, _Place(handle, number, name, count))

    return map_tensors(structure, detach)


@dataclass(frozen=True)
class _Place:
    """Locates one tensor: the n-th in a field of a sample."""

    handle: DatasetHandle
    number: int
    field: str
    tensor: int

    def __call__(self) -> torch.Tensor:
        structure = self.handle.open().sample(self.number).fields[self.field]
        lazy = [tensor for tensor in iter_tensors(structure) if isinstance(tensor, LazyTensor)]
        return lazy[self.tensor].realize()
