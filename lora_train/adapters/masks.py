"""Dropout masks of adapters, from one small vector of random numbers per batch.

A generator per layer costs more time than a small layer itself, and breaks a compiled block into pieces. Here a batch
draws one vector, and each layer multiplies two of its pieces, rows with columns: the upper bits of such a product are a
hash. The pieces and a factor follow from the layer's name, so no two layers have the same mask. A mask depends on
nothing but seed, batch and name: recomputed under checkpointing it is the same, on every device, and a resumed run has
no generator state to restore.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

NUMBERS = 1 << 15  # in the vector of a batch
PIECE = NUMBERS // 2  # the longest piece


def draw_numbers(generator: torch.Generator) -> Tensor:
    """The vector of a batch: odd numbers, because a product with an even one has fewer values."""
    return torch.randint(-(1 << 31), 1 << 31, (NUMBERS,), generator=generator, dtype=torch.int32) | 1


@dataclass(frozen=True)
class Part:
    """The rows `first` to `first + rows` of a batch of `total` rows."""

    first: int
    rows: int
    total: int

    @classmethod
    def of_all(cls, rows: int) -> Part:
        return cls(0, rows, rows)

    def place(self, count: int) -> tuple[int, int]:
        """If the rows here have `count` values in a layer: how many the batch has, and where those here begin.

        A layer whose first axis is not that of the batch has the same values for every part.
        """
        if count % self.rows:
            return count, 0
        return count // self.rows * self.total, count // self.rows * self.first


@dataclass(frozen=True)
class LayerMask:
    """How the masks of one layer follow from a batch's vector: where its pieces begin, and its factor."""

    rows: int
    columns: int
    more: int
    factor: int  # odd

    @classmethod
    def of(cls, name: str) -> LayerMask:
        """The masks of the layer with this name."""
        digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
        rows, columns, more, factor = (int.from_bytes(digest[n : n + 4], "little") for n in range(0, 16, 4))
        return cls(rows % PIECE, columns % PIECE, more % PIECE, factor >> 1 | 1)

    def keep(self, numbers: Tensor, shape: torch.Size, share: float, part: Part | None = None) -> Tensor:
        """Which values of this shape stay if this share is dropped."""
        left = self._left(numbers, math.prod(shape[:-1]), part).reshape(*shape[:-1], 1) * self.factor
        right = _piece(numbers, self.columns, self.more, shape[-1])
        return left * right >= round(share * (1 << 32)) - (1 << 31)

    def _left(self, numbers: Tensor, count: int, part: Part | None) -> Tensor:
        if part is None:
            return _piece(numbers, self.rows, self.more, count)
        total, begin = part.place(count)
        return _piece(numbers, self.rows, self.more, total)[begin : begin + count]


def _piece(numbers: Tensor, place: int, more: int, count: int) -> Tensor:
    if count <= PIECE:
        return numbers[place : place + count]
    # Longer than the vector, as for videos: products again.
    return (numbers[more : more - (-count // PIECE), None] * numbers[place : place + PIECE]).flatten()[:count]
