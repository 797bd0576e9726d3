"""Memory for batches: how it is divided among the tensors of the rows, and the tensors in it.

Rows of the same layout are adjacent, tensor by tensor: the latents of a batch are one tensor, and so are its
conditionings if their shapes are equal. The division depends only on the rows' layouts, so it is computed once. Views
to read into are made at once, tensors on access.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from ..format import ALIGNMENT, DTYPES, Layout, TensorSpec

_MAX_DIVISIONS = 64

_View = tuple[tuple[int, ...], tuple[int, ...], int]  # shape, strides and offset in elements
RowLayouts = tuple[Layout | None, ...]  # one per field; None if the row lacks it


@dataclass(frozen=True)
class Region:
    """Memory of one tensor for several rows: row `rows[k]` has it at `offset + k * stride`."""

    field: int
    slot: int
    rows: tuple[int, ...]
    spec: TensorSpec
    offset: int
    stride: int

    @cached_property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.spec.dtype]

    @cached_property
    def stacked(self) -> _View:
        """One tensor over all rows: [rows, *shape]."""
        size = self.dtype.itemsize
        return (len(self.rows), *self.spec.shape), (self.stride // size, *self.spec.strides), self.offset // size

    @cached_property
    def joined(self) -> _View:
        """One tensor of all rows, whose shapes begin with 1: [rows, *shape[1:]]."""
        shape, strides, offset = self.stacked
        return (shape[0], *shape[2:]), (strides[0], *strides[2:]), offset


@dataclass(frozen=True)
class RowSlices:
    """Where one row goes: each tensor on its own, or several with the padding between them in the file."""

    tensors: list[list[slice]]  # by field
    fields: list[list[slice]]  # to read a field in one call
    whole: list[slice]  # to read the row in one call


@dataclass(frozen=True)
class Division:
    """The layout of a block of memory for given rows. `latents` is the region of the stacked latents."""

    nbytes: int
    regions: tuple[tuple[Region, ...], ...]  # by field, in the order of slots
    latents: Region | None
    rows: tuple[RowSlices, ...]


class Memory:
    """A divided block."""

    __slots__ = ("_block", "_bytes", "_division", "_fields", "_latents", "_tensors", "_typed", "whole")

    def __init__(self, block: torch.Tensor, division: Division) -> None:
        self._block, self._division = block, division
        self._bytes = view = block.numpy().data
        self.whole = [[view[part] for part in row.whole] for row in division.rows]
        self._fields: dict[tuple[int, int], list[memoryview]] = {}
        self._tensors: dict[int, list[tuple[torch.Tensor, ...]]] = {}
        self._typed: dict[torch.dtype, torch.Tensor] = {}
        self._latents: torch.Tensor | None = None

    def field(self, row: int, field: int) -> list[memoryview]:
        """What one field of a row is read into, with the padding between its tensors."""
        found = self._fields.get((row, field))
        if found is None:
            found = self._fields[row, field] = [self._bytes[part] for part in self._division.rows[row].fields[field]]
        return found

    def parts(self, row: int, field: int) -> list[memoryview]:
        """The same, tensor by tensor."""
        return [self._bytes[part] for part in self._division.rows[row].tensors[field]]

    @property
    def latents(self) -> torch.Tensor | None:
        """The latents of all rows, [rows, C, (T,) H, W]."""
        region = self._division.latents
        if self._latents is None and region is not None:
            self._latents = torch.as_strided(self._typed_as(region.dtype), *region.joined)
        return self._latents

    def tensors(self, field: int) -> list[tuple[torch.Tensor, ...]]:
        """The tensors of a field, row by row."""
        found = self._tensors.get(field)
        if found is None:
            found = self._tensors[field] = self._carve(self._division.regions[field])
        return found

    def _carve(self, regions: tuple[Region, ...]) -> list[tuple[torch.Tensor, ...]]:
        count = len(self._division.rows)
        columns = [self._stack(region).unbind(0) for region in regions]
        if columns and all(len(column) == count for column in columns):
            return list(zip(*columns))
        rows: list[tuple[torch.Tensor, ...]] = [()] * count
        for region, column in zip(regions, columns, strict=True):
            for b, tensor in zip(region.rows, column, strict=True):
                rows[b] += (tensor,)
        return rows

    def _stack(self, region: Region) -> torch.Tensor:
        """One tensor over all rows of a region, [rows, *shape]."""
        return torch.as_strided(self._typed_as(region.dtype), *region.stacked)

    def _typed_as(self, dtype: torch.dtype) -> torch.Tensor:
        typed = self._typed.get(dtype)
        if typed is None:
            typed = self._typed[dtype] = self._block.view(dtype)
        return typed


class Spare:
    """Memory for tensors of a batch that are made after reading, one behind the other. It grows as needed."""

    def __init__(self) -> None:
        self._block, self._used = torch.empty(0, dtype=torch.uint8), 0

    def clear(self) -> None:
        self._used = 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        start, nbytes = self._used, math.prod(shape) * dtype.itemsize
        self._used = _aligned(start + nbytes)
        if self._used > len(self._block):  # tensors in the old block keep it
            self._block = torch.empty(2 * self._used, dtype=torch.uint8)
        return self._block[start : start + nbytes].view(dtype).view(shape)


class BatchBuffers:
    """Reusable memory for the batches of one reader. The next batch read into it overwrites what the last one held."""

    def __init__(self, rows: int, pin: bool = False) -> None:
        self._rows, self._pin = rows, pin
        self.spare = Spare()
        self._block = torch.empty(0, dtype=torch.uint8)
        self._memories: dict[int, tuple[Division, Memory]] = {}

    def memory(self, division: Division) -> Memory:
        self.spare.clear()
        found = self._memories.get(id(division))
        if found is not None:
            return found[1]
        if division.nbytes > len(self._block):
            # A short batch reserves memory for a full one: allocating pinned memory is slow.
            size = _aligned(division.nbytes * max(self._rows, len(division.rows)) // len(division.rows))
            self._block = torch.empty(size, dtype=torch.uint8, pin_memory=self._pin)
            self._memories.clear()
        if len(self._memories) >= _MAX_DIVISIONS:
            self._memories.clear()
        # The division is kept with its memory, so that its id is not reused.
        self._memories[id(division)] = division, Memory(self._block, division)
        return self._memories[id(division)][1]


def divide(rows: tuple[RowLayouts, ...], latent_field: int | None) -> Division:
    """Plan the memory for these rows. With a `latent_field` all rows' `samples` are one tensor."""
    regions: list[Region] = []
    latents: Region | None = None
    position = 0
    for field in range(len(rows[0])):
        groups: dict[Layout, list[int]] = {}
        for b, row in enumerate(rows):
            layout = row[field]
            if layout is not None:
                groups.setdefault(layout, []).append(b)
        stack = field == latent_field
        if stack:
            spec = _samples_of(rows[0][field])
            latents = Region(field, -1, tuple(range(len(rows))), spec, position, spec.nbytes)
            position = _aligned(position + spec.nbytes * len(rows))
        for layout, members in groups.items():
            stacked = layout.slot_at("samples") if stack else None
            for slot, spec in enumerate(layout.specs):
                if latents is not None and slot == stacked:
                    one = len(groups) == 1
                    regions += [replace(latents, slot=slot)] if one else [_row_of(latents, slot, b) for b in members]
                else:
                    regions.append(Region(field, slot, tuple(members), spec, position, _aligned(spec.nbytes)))
                    position += _aligned(spec.nbytes) * len(members)
    # The tensors of a field must follow each other in the order of its slots, whatever region they are in.
    regions.sort(key=lambda region: region.slot)
    by_field = tuple(tuple(region for region in regions if region.field == f) for f in range(len(rows[0])))
    # After the last tensor there is room for the padding, which is read with them and never used.
    slices = tuple(_row_slices(by_field, b, position) for b in range(len(rows)))
    return Division(position + ALIGNMENT, by_field, latents, slices)


def _samples_of(layout: Layout | None) -> TensorSpec:
    slot = layout.slot_at("samples") if layout is not None else None
    assert layout is not None and slot is not None, "the caller checked that all rows have a latent"
    return layout.specs[slot]


def _row_slices(regions: tuple[tuple[Region, ...], ...], row: int, padding: int) -> RowSlices:
    tensors = [[_slice(region, row) for region in field if row in region.rows] for field in regions]
    fields = [_padded(field, padding) for field in tensors]
    return RowSlices(tensors, fields, _padded([part for field in tensors for part in field], padding))


def _slice(region: Region, row: int) -> slice:
    start = region.offset + region.rows.index(row) * region.stride
    return slice(start, start + region.spec.nbytes)


def _padded(parts: Sequence[slice], padding: int) -> list[slice]:
    """Slices for tensors that are adjacent in a file, with slices for the padding between them."""
    result, position = [], 0
    for part in parts:
        gap = -position % ALIGNMENT
        if gap:
            result.append(slice(padding, padding + gap))
        result.append(part)
        position += gap + part.stop - part.start
    return result


def _row_of(latents: Region, slot: int, b: int) -> Region:
    return Region(latents.field, slot, (b,), latents.spec, latents.offset + b * latents.stride, latents.stride)


def _aligned(position: int) -> int:
    return position + -position % ALIGNMENT
