"""Trimmed text: tensors without the rows that can be restored bit for bit, or that other entries have too.

Text encoders pad captions. Behind the rows of the words come rows that are all equal, or zeros that differ in their
signs only (values times a mask of zeros keep their signs). Equal rows are stored once, zeros as one bit per value.
Encoders that read from left to right begin every caption with the same rows, those of their template: these are stored
as a tensor of their own, which entries share. What is equal is found by comparing bytes, so no encoder has to be
known, and all other rows are stored as they are.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from ...errors import CacheError
from .lazy import LazyTensor, realize, tensor_bytes
from .tensors import TensorSpec, count_bytes, dtype_named

PADDING = "padding"  # the feature in `Manifest.requires` of caches with trimmed tensors
_LISTED = b'"padded":['  # in the text of a layout; its other quotes are followed by commas, or escaped
_LEAST_BYTES = 4096  # less is not worth a layout of its own
_LEAST_SHARE = 0.1  # of the bytes of an entry
_LEAST_COMMON = 0.2  # the same for rows that entries share: they lie apart, so reading them takes another call
_MAX_BYTES = 1 << 30  # restored: a damaged layout must not ask for any amount of memory
_MAX_LENGTH = 1 << 40
_BLOCK = 64  # rows that are compared at once
_TEMPLATES = 4  # different beginnings that are remembered per kind of tensor
_TEMPLATE_ROWS = 128
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size: to move bits as they are
Room = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]  # memory for a tensor
# Types whose zeros have a sign, in the highest bit.
_SIGNED = {dtype_named(name) for name in ("F16", "BF16", "F32", "F64")}


@dataclass(frozen=True)
class Padding:
    """How tensor `slot` of a layout was trimmed along `axis`, on which it had `length` rows.

    Its rows: those of tensor `first`, which entries share; those that `slot` is stored with; zeros whose sign bits are
    tensor `signs`, eight values of the last axis per byte; then the last of all these again, up to `length`.
    """

    slot: int
    axis: int
    length: int
    first: int | None
    signs: int | None


@dataclass(frozen=True)
class Trimmed:
    """The tensors of an entry without what can be restored. `rows` has the values of each `Padding`."""

    tensors: list[torch.Tensor]
    rows: tuple[tuple, ...]
    saved: int  # bytes


# Writing


class Trimmer:
    """Trims the tensors of entries, where that saves a tenth of an entry. It remembers how entries began.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._templates: dict[tuple, deque[_Template]] = {}
        self._guard = threading.Lock()

    def trim(self, tensors: Sequence[torch.Tensor]) -> Trimmed | None:
        """None if nothing is worth it."""
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        total = sum(sizes)
        if total > _MAX_BYTES:
            return None
        found = {n: self._part(tensor, total) for n, tensor in enumerate(tensors) if sizes[n] > _least(total)}
        parts = {n: part for n, part in found.items() if part is not None}
        kept = [parts[n].middle if n in parts else tensor for n, tensor in enumerate(tensors)]
        rows = [
            (n, part.axis, part.length, _add(kept, part.first), _add(kept, part.signs)) for n, part in parts.items()
        ]
        return Trimmed(kept, tuple(rows), sum(part.saved for part in parts.values())) if parts else None

    def _part(self, tensor: torch.Tensor, total: int) -> "_Part | None":
        tensor = realize(tensor)  # once, not for every part
        data = np.frombuffer(tensor_bytes(tensor), f"u{tensor.element_size()}").reshape(tuple(tensor.shape))
        part = _without_padding(tensor, data, _least(total))
        axis = tensor.ndim - 2  # of the tokens
        if axis < 0 or (part is not None and part.axis != axis):
            return part
        part = part or _Part(axis, tensor.shape[axis], tensor, None, None, 0)
        with self._guard:
            count, is_known = self._template_rows(data, axis, part.middle.shape[axis], _least(total, _LEAST_COMMON))
        if not count:
            return part if part.saved else None
        first, middle = tensor.narrow(axis, 0, count), part.middle.narrow(axis, count, part.middle.shape[axis] - count)
        return _Part(axis, part.length, middle, first, part.signs, part.saved + (_size(first) if is_known else 0))

    def _template_rows(self, data: np.ndarray, axis: int, most: int, least: float) -> tuple[int, bool]:
        """How many first rows earlier tensors of this kind have too, and whether just these rows were used before.

        A number that was too large for a later tensor is never used again, so it settles at the length of a template.
        """
        kind = data.dtype.itemsize, axis, *data.shape[:axis], *data.shape[axis + 1 :]
        known = self._templates.setdefault(kind, deque(maxlen=_TEMPLATES))
        rows = data.reshape(prod(data.shape[:axis]), data.shape[axis], -1)
        for template in known:
            count = min(template.count_equal(rows), most)
            if count * rows[:, 0].nbytes >= least:
                is_known, template.used = template.used == count, count
                template.rows = template.rows[:, :count]
                return count, is_known
        known.append(_Template(rows[:, :_TEMPLATE_ROWS].copy()))
        return 0, False


@dataclass
class _Template:
    """The first rows of a tensor, and how many of them were last stored on their own."""

    rows: np.ndarray
    used: int = 0

    def count_equal(self, rows: np.ndarray) -> int:
        length = min(self.rows.shape[1], rows.shape[1])
        differ = (self.rows[:, :length] != rows[:, :length]).any((0, 2))
        return int(differ.argmax()) if differ.any() else length


@dataclass(frozen=True)
class _Part:
    """One tensor in parts, as `Padding` has them."""

    axis: int
    length: int
    middle: torch.Tensor
    first: torch.Tensor | None
    signs: torch.Tensor | None
    saved: int


def _without_padding(tensor: torch.Tensor, data: np.ndarray, least: float) -> _Part | None:
    """The tensor without the padding of the axis where it takes most; None if none of it is worth it."""
    found = [_trim_axis(tensor, data, axis) for axis, length in enumerate(tensor.shape) if length > 1]
    return max((part for part in found if part.saved >= least), key=lambda part: part.saved, default=None)


def _trim_axis(tensor: torch.Tensor, data: np.ndarray, axis: int) -> _Part:
    length, signs = data.shape[axis], None
    rows = data.reshape(prod(data.shape[:axis]), length, -1)
    kept = length + 1 - _count_last(rows, lambda block: (block == rows[:, -1:]).all((0, 2)))
    count = kept
    if axis < tensor.ndim - 1 and tensor.dtype in _SIGNED:
        value = np.array((1 << 8 * data.itemsize - 1) - 1, data.dtype)  # all bits but the sign
        count = min(kept, length - _count_last(rows, lambda block: ((block & value) == 0).all((0, 2))))
    if count < kept:
        zeros = np.take(data, range(count, kept), axis)
        signs = torch.from_numpy(np.packbits(zeros != 0, axis=-1, bitorder="little"))
    middle = tensor.narrow(axis, 0, count)
    saved = data.nbytes - _size(middle) - (0 if signs is None else _size(signs))
    return _Part(axis, length, middle, None, signs, saved)


def _count_last(rows: np.ndarray, like: Callable[[np.ndarray], np.ndarray]) -> int:
    """How many rows at the end are like that. Most tensors have none: the last two rows show it."""
    end, size = rows.shape[1], 2
    while end > 0:
        start = max(0, end - size)
        others = np.flatnonzero(~like(rows[:, start:end]))
        if len(others):
            return rows.shape[1] - start - int(others[-1]) - 1
        end, size = start, _BLOCK
    return rows.shape[1]


def _least(total: int, share: float = _LEAST_SHARE) -> float:
    """The bytes that must be saved of an entry of this size."""
    return max(_LEAST_BYTES, share * total)


def _add(tensors: list[torch.Tensor], tensor: torch.Tensor | None) -> int | None:
    """Append a tensor, and return its number."""
    if tensor is None:
        return None
    tensors.append(tensor)
    return len(tensors) - 1


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


# Reading


def is_trimmed(layouts: np.ndarray) -> bool:
    """Whether one of these layouts (the texts of an index, as bytes) has trimmed tensors."""
    return layouts.tobytes().find(_LISTED) >= 0


def read_paddings(rows: Any, specs: Sequence[TensorSpec]) -> tuple[Padding, ...]:
    """The trimmed tensors of a stored layout. Refuses those that do not fit its tensors."""
    paddings = tuple(Padding(*row) for row in rows)
    slots = [slot for p in paddings for slot in (p.slot, p.first, p.signs) if slot is not None]
    if any(type(slot) is not int or not 0 <= slot < len(specs) for slot in slots) or len({*slots}) < len(slots):
        raise CacheError(f"a stored layout restores tensors {str(slots)[:200]} of {len(specs)}")
    for padding in paddings:
        _check(padding, specs)
    if sum(_restored_bytes(padding, specs) for padding in paddings) > _MAX_BYTES:
        raise CacheError(f"a stored layout restores more than {_MAX_BYTES:,} bytes")
    return paddings


def saved_bytes(padding: Padding, specs: Sequence[TensorSpec]) -> int:
    """The bytes that one tensor takes less in an entry; rows that entries share count."""
    stored = [slot for slot in (padding.slot, padding.first, padding.signs) if slot is not None]
    return _restored_bytes(padding, specs) - sum(specs[slot].nbytes for slot in stored)


def restore(paddings: tuple[Padding, ...], tensors: tuple[torch.Tensor, ...], room: Room | None = None) -> tuple:
    """The stored tensors of an entry with their padding, in this room if there is any. Lazy ones stay lazy."""
    whole = list(tensors)
    for p in paddings:
        first, signs = (None if slot is None else tensors[slot] for slot in (p.first, p.signs))
        whole[p.slot] = _restore(first, tensors[p.slot], signs, p.axis, p.length, room)
    return tuple(whole)


def _restore(
    first: torch.Tensor | None,
    middle: torch.Tensor,
    signs: torch.Tensor | None,
    axis: int,
    length: int,
    room: Room | None = None,
) -> torch.Tensor:
    if isinstance(middle, LazyTensor):
        shape = _with_rows(tuple(middle.shape), axis, length)
        load = lambda: _restore(realize(first), realize(middle), realize(signs), axis, length)  # noqa: E731
        return LazyTensor(shape, middle.dtype, load)
    whole = _INTEGERS[middle.element_size()]  # as integers, no bit of a nan can change
    parts = [part.view(whole) for part in (first, middle) if part is not None]
    if signs is not None:
        parts.append(_zeros(signs, parts[-1]))
    parts = [part for part in parts if part.shape[axis]]
    last = parts[-1].narrow(axis, parts[-1].shape[axis] - 1, 1)
    repeats = length - sum(part.shape[axis] for part in parts)
    parts.append(last.expand(_with_rows(tuple(last.shape), axis, repeats)))
    out = room(_with_rows(tuple(middle.shape), axis, length), parts[0].dtype) if room else None
    return torch.cat(parts, axis, out=out).view(middle.dtype)


def _zeros(signs: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Zeros with these sign bits, as integers of the type of `like` and with its last axis."""
    places = torch.arange(8, dtype=torch.uint8, device=signs.device)
    bits = (signs.unsqueeze(-1) >> places & 1).flatten(-2).narrow(-1, 0, like.shape[-1])
    return bits.to(like.dtype) << 8 * like.element_size() - 1


def _restored_bytes(padding: Padding, specs: Sequence[TensorSpec]) -> int:
    spec = specs[padding.slot]
    return count_bytes(spec.dtype, _with_rows(spec.shape, padding.axis, padding.length))


def _check(padding: Padding, specs: Sequence[TensorSpec]) -> None:
    """Refuse parts that do not make up one tensor."""
    spec, axis, length = specs[padding.slot], padding.axis, padding.length
    fits = type(axis) is int and 0 <= axis < len(spec.shape) and type(length) is int and length < _MAX_LENGTH
    rows = spec.shape[axis] if fits and dtype_named(spec.dtype).itemsize in _INTEGERS else 0
    if fits and padding.first is not None:
        first = specs[padding.first]
        rows += _rows_of(first, axis)
        fits = first.dtype == spec.dtype and first.shape == _with_rows(spec.shape, axis, _rows_of(first, axis))
    if fits and padding.signs is not None:
        signs = specs[padding.signs]
        rows += _rows_of(signs, axis)
        *outer, width = _with_rows(spec.shape, axis, _rows_of(signs, axis))
        fits = axis < len(outer) and signs.dtype == "U8" and signs.shape == (*outer, -(-width // 8))
    if not fits or not 0 < rows <= length:
        raise CacheError(f"a stored layout restores a tensor of shape {str(spec.shape)[:200]} wrongly: {padding}")


def _rows_of(spec: TensorSpec, axis: int) -> int:
    return spec.shape[axis] if axis < len(spec.shape) else 0


def _with_rows(shape: tuple[int, ...], axis: int, rows: int) -> tuple[int, ...]:
    return (*shape[:axis], rows, *shape[axis + 1 :])
