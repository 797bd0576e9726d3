"""The ranks of a training: its processes, numbered from 0. Here is the one that trains alone, at no cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

T = TypeVar("T")


@dataclass(eq=False)
class Ranks:
    """This process among those of a training. All of them call the same methods in the same order."""

    rank: int = 0
    size: int = 1
    local: int = 0  # its number on its machine

    @property
    def leads(self) -> bool:
        """Whether this rank writes the files of the run."""
        return self.rank == 0

    def share(self, rows: int, rank: int | None = None) -> tuple[int, int]:
        """The rows of a batch that a rank takes, this one by default: from start up to stop. May be none."""
        rank = self.rank if rank is None else rank
        return rows * rank // self.size, rows * (rank + 1) // self.size

    def owners(self, rows: int) -> list[int]:
        """For each row of a batch, the rank that takes it."""
        return [rank for rank in range(self.size) for _ in range(*self.share(rows, rank))]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return flag

    def from_first(self, value: T) -> T:
        """The value that rank 0 has, as JSON has it."""
        return value

    def gather(self, text: str) -> list[str]:
        """The texts of all ranks."""
        return [text]

    @contextmanager
    def together(self) -> Iterator[None]:
        """An error inside, on any rank, ends all of them when they leave it."""
        yield

    def add(self, values: Tensor) -> Tensor:
        """The sum over all ranks, in place; the same on all of them, bit for bit."""
        return values

    def send(self, values: Tensor, source: int) -> Tensor:
        """The values of the rank `source`, in place."""
        return values

    def tell(self, error: BaseException) -> None:
        """End all other ranks at their next agreement, with this error."""


ALONE = Ranks()
