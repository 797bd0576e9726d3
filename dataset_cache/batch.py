"""Reading a batch: the tensors of several samples, scattered straight into prepared memory with few calls.

A `BatchBuffers` is one block of memory: the latents of all rows as one tensor, then the other tensors of every row.
How it is divided depends only on the rows' layouts, so tensors and views are made once and reused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from .dtypes import DTYPES
from .errors import CacheError
from .files import Extent, ShardFiles
from .index import NO_BUCKET, OFFSET_BITS, Index
from .shard import ALIGNMENT, blob_hash
from .skeleton import Layout, TensorSpec

_OFFSET_MASK = (1 << OFFSET_BITS) - 1
_MAX_PLANS = 64


class Batch:
    """Samples of one bucket. `latents` is [B, C, (T,) H, W]; everything else is a list with one value a row."""

    __slots__ = ("_captions", "fields", "indices", "latents")

    def __init__(
        self,
        indices: list[int],
        latents: torch.Tensor | None,
        fields: dict[str, list],
        captions: Callable[[], list[str]],
    ) -> None:
        self.indices = indices
        self.latents = latents
        self.fields = fields
        self._captions = captions

    @property
    def conditionings(self) -> list:
        return self.fields.get("conditioning", [])

    @property
    def masks(self) -> list | None:
        """One mask a row, None for a row that has none; None if no row has one."""
        masks = self.fields.get("mask")
        return None if masks is None or all(mask is None for mask in masks) else masks

    @property
    def captions(self) -> list[str]:
        return self._captions()

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class _Row:
    """What the index says of one row: per field its layout, locations of its tensors and values of its leaves."""

    layouts: tuple[int, ...]
    locations: tuple[int, ...]
    leaves: tuple[int, ...]
    refs: tuple[int, ...]


@dataclass(frozen=True)
class _Plan:
    """How a block of memory is divided for certain layouts."""

    latents: torch.Tensor | None
    tensors: list[list[list[torch.Tensor]]]  # row, field, slot
    views: list[list[memoryview]]  # row, then every tensor of the row in order
    sizes: list[list[int]]


class BatchBuffers:
    """Reusable memory for the batches of one reader. The next batch read into it overwrites what the last one held."""

    def __init__(self, rows: int, pin: bool = False) -> None:
        self._rows, self._pin = rows, pin
        self._block = torch.empty(0, dtype=torch.uint8)
        self._plans: dict[tuple, _Plan] = {}
        self.gap = memoryview(bytearray(ALIGNMENT))  # where the padding between two tensors of one read goes

    def plan(self, rows: tuple[tuple[int, ...], ...], layouts: Callable[[int], Layout], latent_field: int) -> _Plan:
        found = self._plans.get(rows)
        if found is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            found = self._plans[rows] = self._divide(rows, layouts, latent_field)
        return found

    def _divide(self, rows: tuple, layouts: Callable[[int], Layout], latent_field: int) -> _Plan:
        parsed = [[layouts(number) if number >= 0 else None for number in row] for row in rows]
        slot = parsed[0][latent_field].slot_at("samples") if latent_field >= 0 else None
        latent = parsed[0][latent_field].specs[slot] if slot is not None else None
        position = _aligned(latent.nbytes * len(rows)) if latent else 0
        places: list[list[int]] = []
        for b, row in enumerate(parsed):
            places.append([])
            for f, layout in enumerate(row):
                for s, spec in enumerate(layout.specs if layout else ()):
                    if latent and f == latent_field and s == row[f].slot_at("samples"):
                        places[b].append(b * latent.nbytes)
                    else:
                        places[b].append(position)
                        position = _aligned(position + spec.nbytes)
        # A short batch reserves for a full one: pinned memory is slow to get.
        self._reserve(position * max(self._rows, len(rows)) // len(rows))
        return self._carve(parsed, places, latent)

    def _reserve(self, size: int) -> None:
        if size > len(self._block):
            self._plans.clear()
            self._block = torch.empty(size, dtype=torch.uint8, pin_memory=self._pin)

    def _carve(self, rows: list[list[Layout | None]], places: list[list[int]], latent: TensorSpec | None) -> _Plan:
        memory = memoryview(self._block.numpy())
        typed: dict[str, torch.Tensor] = {}
        latents = None
        if latent is not None:
            shape = (len(rows), *latent.shape[1:])
            latents = _tensor_at(self._block, typed, TensorSpec(latent.dtype, shape, 0), 0)
        tensors, views, sizes = [], [], []
        for row, starts in zip(rows, places, strict=True):
            specs = [layout.specs if layout else () for layout in row]
            flat = [spec for field in specs for spec in field]
            made = iter([_tensor_at(self._block, typed, spec, at) for spec, at in zip(flat, starts, strict=True)])
            tensors.append([[next(made) for _ in field] for field in specs])
            views.append([memory[at : at + spec.nbytes] for spec, at in zip(flat, starts, strict=True)])
            sizes.append([spec.nbytes for spec in flat])
        return _Plan(latents, tensors, views, sizes)


class BatchReader:
    """Reads batches of one dataset. It keeps nothing of what it read."""

    def __init__(self, index: Index, files: ShardFiles, fields: tuple[str, ...], check: bool, mapped: bool) -> None:
        self._index, self._files, self._fields = index, files, fields
        self._check, self._mapped = check, mapped

    def read(
        self,
        indices: Sequence[int],
        fields: Sequence[str],
        variants: Mapping[str, Sequence[int]],
        buffers: BatchBuffers,
        captions: Callable[[], list[str]],
    ) -> Batch:
        indices = [int(i) for i in indices]
        numbers = [self._fields.index(name) for name in fields]
        picks = [variants.get(name) for name in fields]
        latent_field = fields.index("latent") if "latent" in fields else -1
        rows = [self._row(i, b, numbers, picks) for b, i in enumerate(indices)]
        if latent_field >= 0 and not self._one_bucket(indices, rows, latent_field):
            latent_field = -1
        plan = buffers.plan(tuple([row.layouts for row in rows]), self._index.layout, latent_field)
        self._files.read_into(self._extents(rows, plan, buffers.gap))
        if self._check:
            for i, row, views in zip(indices, rows, plan.views, strict=True):
                self._compare(i, row, views)
        structures = self._structures(rows, plan)
        return Batch(indices, plan.latents, dict(zip(fields, structures, strict=True)), captions)

    def _row(self, i: int, b: int, numbers: list[int], picks: list[Sequence[int] | None]) -> _Row:
        index = self._index
        if not 0 <= i < index.sample_count:
            raise CacheError(f"sample {i} of a dataset of {index.sample_count}")
        entries = index.variants_of(index.sample_row(i)[0], len(self._fields))
        layouts, locations, leaves, refs = [], (), [], []
        for number, pick in zip(numbers, picks, strict=True):
            choices = entries[number]
            if not choices:
                layouts.append(-1)
                leaves.append(0)
                continue
            chosen = 0 if pick is None else pick[b]
            if not 0 <= chosen < len(choices):
                raise CacheError(f"sample {i}: variant {chosen} of {self._fields[number]}, it has {len(choices)}")
            first, leaf, layout, _ = index.entry_row(choices[chosen])
            count = len(index.layout(layout).specs)
            layouts.append(layout)
            leaves.append(leaf)
            locations += index.locations(first, count)
            refs += range(first, first + count)
        return _Row(tuple(layouts), locations, tuple(leaves), tuple(refs))

    def _one_bucket(self, indices: list[int], rows: list[_Row], latent_field: int) -> bool:
        """Whether the rows' latents stack. Rows of different buckets, or with and without a latent, are refused."""
        buckets = {self._index.sample_row(i)[3] for i in indices}
        if len({row.layouts[latent_field] for row in rows}) > 1 and len(buckets) > 1:
            raise CacheError(f"samples {indices} are of {len(buckets)} different buckets; a batch is read from one")
        return NO_BUCKET not in buckets

    def _extents(self, rows: list[_Row], plan: _Plan, gap: memoryview) -> list[Extent]:
        """Reads that cover all rows; tensors that stand one behind the other in a file become one read."""
        extents: list[Extent] = []
        end, buffers = -1, []
        for row, views, sizes in zip(rows, plan.views, plan.sizes, strict=True):
            for location, view, size in zip(row.locations, views, sizes, strict=True):
                if not size:
                    continue
                space = location - end
                if space and not 0 < space < ALIGNMENT:
                    buffers = [view]
                    extents.append((location >> OFFSET_BITS, location & _OFFSET_MASK, buffers))
                else:
                    if space:
                        buffers.append(gap[:space])
                    buffers.append(view)
                end = location + size
                self._files.check_range(location >> OFFSET_BITS, location & _OFFSET_MASK, size)
        return extents

    def _structures(self, rows: list[_Row], plan: _Plan) -> list[list]:
        index = self._index
        structures: list[list] = [[] for _ in rows[0].layouts] if rows else []
        for row, tensors in zip(rows, plan.tensors, strict=True):
            for f, number in enumerate(row.layouts):
                if number < 0:
                    structures[f].append(None)
                    continue
                layout = index.layout(number)
                values = index.leaf_values(layout, row.leaves[f]) if layout.has_leaves else ()
                structures[f].append(layout.join(tensors[f], values))
        return structures

    def _compare(self, i: int, row: _Row, views: list[memoryview]) -> None:
        specs = [spec for number in row.layouts if number >= 0 for spec in self._index.layout(number).specs]
        for ref, spec, view in zip(row.refs, specs, views, strict=True):
            if blob_hash(view, spec.dtype, spec.shape) != self._index.hash_of(ref):
                raise CacheError(f"sample {i}: its stored bytes are damaged (ref {ref})")


def _aligned(position: int) -> int:
    return position + -position % ALIGNMENT


def _tensor_at(block: torch.Tensor, typed: dict[str, torch.Tensor], spec: TensorSpec, at: int) -> torch.Tensor:
    dtype = DTYPES[spec.dtype]
    if spec.dtype not in typed:
        whole = len(block) - len(block) % dtype.itemsize
        typed[spec.dtype] = block[:whole].view(dtype)
    strides, step = [], 1
    for n in reversed(spec.shape):
        strides.append(step)
        step *= max(n, 1)
    return torch.as_strided(typed[spec.dtype], spec.shape, strides[::-1], at // dtype.itemsize)
