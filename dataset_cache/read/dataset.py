"""What every dataset looks like: samples, buckets, batches, and the protocols that caches, subsets and plans fulfil."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from ..address import Address
from ..ahead import Traffic
from ..format import Key, Manifest, Split, map_tensors, realize
from ..index import SampleFacts
from .buffers import BatchBuffers

Change = Callable[[torch.Tensor], torch.Tensor]


class Fields(Mapping[str, Any]):
    """Structures of a sample, or of a batch, by name. Each is built on first access and then stays the same object."""

    def __init__(self, names: tuple[str, ...], build: Callable[..., Any]) -> None:
        self._names = names
        self._build = build
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            if name not in self._names:
                raise KeyError(name)
            self._built[name] = self._build(name)
        return self._built[name]

    def changed(self, name: str, change: Change) -> Any:
        """A structure with every tensor changed."""
        return map_tensors(self[name], change)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # for another process: with all tensors, which are read now


@dataclass(frozen=True, kw_only=True)
class Sample(SampleFacts):
    """A sample as it was stored. Tensors are lazy until `realize`; `captions` has one text per conditioning variant."""

    index: int
    fields: Mapping[str, Any]
    caption: str

    @property
    def latent(self) -> Any:
        return self.fields.get("latent")

    @property
    def conditioning(self) -> Any:
        return self.fields.get("conditioning")

    def realize(self) -> "Sample":
        """The same sample with every tensor in memory."""
        return replace(self, fields={name: realize(value) for name, value in self.fields.items()})


@dataclass(frozen=True)
class Bucket:
    """Samples that fit into one batch: the shape of their latents without the first axis, and the dtype.

    As text it is the size of the images in pixels, if known.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    pixels: tuple[int, int] | None = field(default=None, compare=False)  # width and height

    def __str__(self) -> str:
        if self.pixels is None:
            return f"latents of {'×'.join(map(str, self.shape))}"
        return "×".join(map(str, (*self.pixels, *self.shape[1:-2])))


class Batch:
    """Samples of one bucket. `latents` is [B, C, (T,) H, W]; everything else is a list with one value per row."""

    __slots__ = ("_captions", "fields", "indices", "latents")

    def __init__(
        self,
        indices: list[int],
        latents: torch.Tensor | None,
        fields: Mapping[str, list],
        captions: Callable[[], list[str]],
    ) -> None:
        self.indices = indices
        self.latents = latents
        self.fields = fields
        self._captions = captions

    def __reduce__(self) -> tuple[Any, ...]:
        captions = self.captions
        return Batch, (self.indices, self.latents, self.fields, partial(list, captions))

    def map(self, change: Change) -> "Batch":
        """A copy of the batch with every tensor changed, as by `lambda tensor: tensor.to("cuda")`.

        Trimmed ones are changed as they are stored and restored then: what they lack is not copied. The `latent`
        structures are shared: their samples are the rows of `latents`.
        """
        given = self.fields if isinstance(self.fields, Fields) else Fields(tuple(self.fields), self.fields.__getitem__)
        fields = {name: given[name] if name == "latent" else given.changed(name, change) for name in given}
        return self._with(change, fields)

    def pin_memory(self) -> "Batch":
        """What a DataLoader with `pin_memory=True` calls."""
        pin = torch.Tensor.pin_memory
        kept = {name: rows if name == "latent" else map_tensors(rows, pin) for name, rows in self.fields.items()}
        return self._with(pin, kept)

    def _with(self, change: Change, fields: Mapping[str, list]) -> "Batch":
        return Batch(self.indices, None if self.latents is None else change(self.latents), fields, self._captions)

    @property
    def conditionings(self) -> list:
        return self.fields.get("conditioning", [])

    @property
    def masks(self) -> list | None:
        """One mask per row, None for a row without one; None if no row has one."""
        masks = self.fields.get("mask")
        return None if masks is None or all(mask is None for mask in masks) else masks

    @property
    def captions(self) -> list[str]:
        return self._captions()

    def __len__(self) -> int:
        return len(self.indices)


class Samples(Protocol):
    """A list of samples to look at: a cache, a subset of one, or a plan."""

    @property
    def encoded(self) -> bool: ...

    @property
    def fields(self) -> tuple[str, ...]: ...

    @property
    def sets(self) -> Mapping[str, Mapping[str, Any]]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, i: int, /) -> Sample: ...

    def __iter__(self) -> Iterator[Sample]: ...

    def sample(self, i: int, variants: Mapping[str, int] | None = None) -> Sample: ...

    def buckets(self) -> Mapping[Bucket, np.ndarray]: ...

    def column(self, name: str) -> np.ndarray: ...

    def source(self, i: int) -> str: ...

    def captions(self, i: int) -> list[str]: ...


class Dataset(Samples, Protocol):
    """Encoded samples that can be read in batches and trained on: a cache or a subset of one."""

    @property
    def path(self) -> Path | Address: ...

    @property
    def id(self) -> str: ...

    @property
    def manifest(self) -> Manifest: ...

    @property
    def generation(self) -> str: ...

    @property
    def provenance(self) -> Mapping[str, Any]: ...

    @property
    def named(self) -> Mapping[str, bytes]: ...

    def read_batch(
        self,
        indices: Sequence[int],
        *,
        variants: Mapping[str, Sequence[int]] | None = None,
        fields: Sequence[str] | None = None,
        buffers: BatchBuffers | None = None,
    ) -> Batch: ...

    def buffers(self, rows: int, pin: bool = False) -> BatchBuffers: ...

    def will_need(self, indices: Sequence[int], variants: Mapping[str, Sequence[int]] | None = None) -> None: ...

    def coming(
        self,
        batches: Iterable[tuple[Sequence[int], Mapping[str, Sequence[int]]]],
        fields: Sequence[str] | None = None,
    ) -> None: ...

    @property
    def traffic(self) -> Traffic | None: ...

    def variants(self, field: str) -> np.ndarray: ...

    def keys(self, i: int) -> dict[str, list[bytes]]: ...

    def has(self, key: Key) -> bool: ...

    def entry(self, key: Key) -> Any: ...

    def stored_entry(self, key: Key) -> tuple[str, Split]: ...
