"""A batch before it is read, and a part of one, as each of several ranks gets it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class BatchPlan:
    """One batch before it is read."""

    number: int  # counted over the run
    epoch: int
    indices: list[int]
    variants: dict[str, list[int]]
    main: int  # rows before the prior partners
    share: float = 1.0  # of its step's rows: with gradient accumulation, or in a part
    whole: BatchPlan | None = None  # the batch that this is a part of, as a rank of several gets one
    first: int = 0  # the row of it that this part begins with

    @property
    def batch(self) -> BatchPlan:
        """The batch with all of its rows. What is random is drawn for it, and `take` gives the rows of this part."""
        return self.whole or self

    def part(self, start: int, stop: int) -> BatchPlan:
        """These rows of the batch, maybe none."""
        rows = slice(start, stop)
        return replace(
            self,
            indices=self.indices[rows],
            variants={name: numbers[rows] for name, numbers in self.variants.items()},
            main=min(max(self.main - start, 0), stop - start),
            share=self.share * ((stop - start) / len(self.indices)),
            whole=self.batch,
            first=self.first + start,
        )

    def take(self, values: Tensor) -> Tensor:
        """Of values for all rows of the batch, those of this part."""
        return values if self.whole is None else values[self.first : self.first + len(self.indices)]

    def widen(self, values: Tensor) -> Tensor:
        """A tensor with as many rows as the whole batch, for its shape only."""
        return values if self.whole is None else values[:1].expand(len(self.whole.indices), *values.shape[1:])
