"""Handles: a saved dataset as it travels between nodes: where it is, which generation, which of its samples.

A handle is small and immutable, and opens its dataset only while it is used. So are the lazy tensors made from one.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...dataset_cache import CacheError, LazyTensor, Subset, codec_for, read_manifest
from .opened import opened


@dataclass(frozen=True)
class DatasetHandle:
    """One generation of a saved dataset, or some of its samples."""

    name: str
    path: Path
    generation: str
    indices: np.ndarray | None = field(default=None, compare=False, repr=False)  # None: all

    def open(self) -> Any:
        """The dataset, for as long as the caller keeps it: nothing in use is removed by others."""
        cache = opened(self.path, self.generation)
        return cache if self.indices is None else Subset(cache, self.indices)

    def select(self, indices: np.ndarray) -> "DatasetHandle":
        """The handle of some of this handle's samples."""
        chosen = indices if self.indices is None else self.indices[indices]
        return DatasetHandle(self.name, self.path, self.generation, chosen)

    def __len__(self) -> int:
        return len(self.open()) if self.indices is None else len(self.indices)


def handle_of(name: str, path: Path) -> DatasetHandle:
    """The handle of what is published at `path` now."""
    return DatasetHandle(name, path, published_generation(path, name))


def published_generation(path: Path, name: str) -> str:
    manifest = read_manifest(path)
    if manifest is None:
        raise CacheError(f"the dataset {name} was never finished; run the workflow that saves it again")
    return manifest.generation


def lazy_field(handle: DatasetHandle, number: int, name: str) -> Any:
    """A field of a sample with tensors that open the dataset when they are read, and hold nothing until then."""
    structure = handle.open().sample(number).fields.get(name)
    if structure is None:
        source = handle.open().source(number)
        raise CacheError(f"sample {number} ({source}) of {handle.name} has no {name}; encode the dataset again")
    count = -1

    def let_go(tensor: LazyTensor) -> LazyTensor:
        nonlocal count
        count += 1
        return LazyTensor(tuple(tensor.shape), tensor.dtype, _Place(handle, number, name, count))

    return _map_lazy(structure, let_go)


@dataclass(frozen=True)
class _Place:
    """Where a tensor is: the how-manieth of a sample's field."""

    handle: DatasetHandle
    number: int
    field: str
    tensor: int

    def __call__(self) -> torch.Tensor:
        found: list[LazyTensor] = []
        structure = self.handle.open().sample(self.number).fields[self.field]
        _map_lazy(structure, found.append)
        return found[self.tensor].realize()


def _map_lazy(value: Any, function: Any) -> Any:
    """The structure with every lazy tensor replaced, from left to right."""
    if isinstance(value, LazyTensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _map_lazy(item, function) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_map_lazy(item, function) for item in value)
    codec = None if isinstance(value, torch.Tensor) else codec_for(value)
    return value if codec is None else codec.join(_map_lazy(codec.split(value), function))
