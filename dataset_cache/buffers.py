"""Memory that batches are read into: how it is divided among the tensors of the rows, and the tensors that lie in it.

Rows of the same layout stand one behind the other, tensor by tensor: the latents of a batch are one tensor, and so are
its conditionings where their shapes agree. The division depends only on the rows' layouts, so it is made once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch

from .dtypes import DTYPES
from .shard import ALIGNMENT
from .skeleton import Layout, TensorSpec

_MAX_DIVISIONS = 64
_GAP = memoryview(bytearray(ALIGNMENT))  # where the padding between two tensors of one read goes; never looked at

RowLayouts = tuple[Layout | None, ...]  # of every field; None where a row lacks it


@dataclass(frozen=True)
class Region:
    """Memory of one tensor for several rows: row `rows[k]` has it at `offset + k * stride`."""

    field: int
    slot: int
    rows: tuple[int, ...]
    spec: TensorSpec
    offset: int
    stride: int


@dataclass(frozen=True)
class Division:
    """How much memory certain rows need, and what lies where. `latents` is the region of the stacked latents."""

    nbytes: int
    regions: tuple[Region, ...]
    latents: Region | None
    rows: tuple[RowLayouts, ...]
    padded: bool  # whether there is padding between tensors in the file
    bounds: tuple[slice, ...]  # of the fields among all tensors of a row; empty where rows differ in their layouts


class RowMemory(NamedTuple):
    """What one row is read into: the tensors of every field and a view of each.

    The last two have the padding between tensors in them, so that a field, or the whole row, is read in one call.
    """

    tensors: list[tuple[torch.Tensor, ...]]
    views: list[tuple[memoryview, ...]]
    fields: Sequence[Sequence[memoryview]]
    whole: list[memoryview]


class Memory(NamedTuple):
    """A divided block."""

    latents: torch.Tensor | None
    rows: list[RowMemory]


class BatchBuffers:
    """Reusable memory for the batches of one reader. The next batch read into it overwrites what the last one held."""

    def __init__(self, rows: int, pin: bool = False) -> None:
        self._rows, self._pin = rows, pin
        self._block = torch.empty(0, dtype=torch.uint8)
        self._memories: dict[int, tuple[Division, Memory]] = {}

    def memory(self, division: Division) -> Memory:
        found = self._memories.get(id(division))
        if found is not None:
            return found[1]
        if division.nbytes > len(self._block):
            # A short batch reserves for a full one: pinned memory is slow to get.
            size = _aligned(division.nbytes * max(self._rows, len(division.rows)) // len(division.rows))
            self._block = torch.empty(size, dtype=torch.uint8, pin_memory=self._pin)
            self._memories.clear()
        if len(self._memories) >= _MAX_DIVISIONS:
            self._memories.clear()
        # The division is kept with its memory: its id must not pass to another.
        self._memories[id(division)] = division, carve(self._block, division)
        return self._memories[id(division)][1]


def divide(rows: tuple[RowLayouts, ...], latent_field: int | None) -> Division:
    """Plan the memory for these rows. With a `latent_field` all rows' `samples` are one tensor."""
    regions, position, latents = [], 0, None
    for field in range(len(rows[0])):
        groups: dict[Layout, list[int]] = {}
        for b, row in enumerate(rows):
            if row[field] is not None:
                groups.setdefault(row[field], []).append(b)
        if field == latent_field:
            spec = rows[0][field].specs[rows[0][field].slot_at("samples")]
            latents = Region(field, -1, tuple(range(len(rows))), spec, position, spec.nbytes)
            position = _aligned(position + spec.nbytes * len(rows))
        for layout, members in groups.items():
            stacked = layout.slot_at("samples") if field == latent_field else None
            for slot, spec in enumerate(layout.specs):
                if slot == stacked and len(groups) == 1:
                    regions.append(replace(latents, slot=slot))
                elif slot == stacked:
                    regions += [_row_of(latents, slot, b) for b in members]
                else:
                    regions.append(Region(field, slot, tuple(members), spec, position, _aligned(spec.nbytes)))
                    position += _aligned(spec.nbytes) * len(members)
    # A field's tensors must follow each other in the order of its slots, whichever region they came from.
    regions.sort(key=lambda region: (region.field, region.slot))
    padded = any(spec.nbytes % ALIGNMENT for row in rows for layout in row if layout for spec in layout.specs)
    return Division(position, tuple(regions), latents, rows, padded, _bounds(rows) if regions else ())


def carve(block: torch.Tensor, division: Division) -> Memory:
    """The tensors of a division in a block of bytes."""
    memory = memoryview(block.numpy())
    typed: dict[str, torch.Tensor] = {}
    stacks = [_stack(block, typed, region) for region in division.regions]
    latents = None
    if division.latents is not None:
        latents = _stack(block, typed, division.latents).flatten(0, 1)
    if division.bounds:
        rows = _carve_alike(memory, stacks, division)
    else:
        rows = _carve_mixed(memory, stacks, division)
    return Memory(latents, rows)


def _carve_alike(memory: memoryview, stacks: list[torch.Tensor], division: Division) -> list[RowMemory]:
    """All rows have the same layouts, as nearly always: every region has all rows."""
    bounds = division.bounds
    tensors = zip(*[stack.unbind(0) for stack in stacks])
    views = zip(*[_row_views(memory, region) for region in division.regions])
    rows = []
    for own, seen in zip(tensors, views):
        parts = [seen[bound] for bound in bounds]
        rows.append(_row_memory([own[bound] for bound in bounds], parts, division.padded))
    return rows


def _carve_mixed(memory: memoryview, stacks: list[torch.Tensor], division: Division) -> list[RowMemory]:
    tensors = [[() for _ in row] for row in division.rows]
    views = [[() for _ in row] for row in division.rows]
    for region, stack in zip(division.regions, stacks):
        for b, tensor, view in zip(region.rows, stack.unbind(0), _row_views(memory, region)):
            tensors[b][region.field] += (tensor,)
            views[b][region.field] += (view,)
    return [_row_memory(own, seen, division.padded) for own, seen in zip(tensors, views)]


def _row_views(memory: memoryview, region: Region) -> list[memoryview]:
    nbytes, start, stride = region.spec.nbytes, region.offset, region.stride
    if not stride:
        return [memory[:0]] * len(region.rows)
    return [memory[at : at + nbytes] for at in range(start, start + stride * len(region.rows), stride)]


def _row_memory(tensors: list[tuple], views: list[tuple], padded: bool) -> RowMemory:
    whole = [view for field in views for view in field]
    if not padded:
        return RowMemory(tensors, views, views, whole)
    return RowMemory(tensors, views, [_padded(field) for field in views], _padded(whole))


def _padded(views: Sequence[memoryview]) -> list[memoryview]:
    """Views of tensors that stand one behind the other in a file, with the padding between them."""
    result, position = [], 0
    for view in views:
        gap = -position % ALIGNMENT
        if gap:
            result.append(_GAP[:gap])
        result.append(view)
        position += gap + len(view)
    return result


def _stack(block: torch.Tensor, typed: dict[str, torch.Tensor], region: Region) -> torch.Tensor:
    """One tensor over all rows of a region, [rows, *shape]."""
    dtype = DTYPES[region.spec.dtype]
    if region.spec.dtype not in typed:
        typed[region.spec.dtype] = block.view(dtype)
    shape = (len(region.rows), *region.spec.shape)
    strides = (region.stride // dtype.itemsize, *region.spec.strides)
    return typed[region.spec.dtype].as_strided(shape, strides, region.offset // dtype.itemsize)


def _bounds(rows: tuple[RowLayouts, ...]) -> tuple[slice, ...]:
    if len(set(rows)) > 1:
        return ()
    edges = [0, *accumulate(len(layout.specs) if layout else 0 for layout in rows[0])]
    return tuple(slice(*edge) for edge in pairwise(edges))


def _row_of(latents: Region, slot: int, b: int) -> Region:
    return Region(latents.field, slot, (b,), latents.spec, latents.offset + b * latents.stride, latents.stride)


def _aligned(position: int) -> int:
    return position + -position % ALIGNMENT
