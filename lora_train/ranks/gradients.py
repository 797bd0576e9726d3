"""The gradients of all ranks as one: in flat buckets, or row by row in the order of the batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .ranks import Ranks

BUCKET = 25 << 20  # bytes of a bucket: large enough to use the network, small enough to cost no memory


@torch.no_grad()
def add_gradients(ranks: Ranks, parameters: Sequence[Tensor]) -> None:
    """Add the gradients of all ranks. A parameter without one on any rank stays without."""
    if ranks.size == 1:
        return
    for bucket in _buckets(_used(ranks, parameters)):
        flat = torch.cat([_gradient(parameter) for parameter in bucket])
        _write(bucket, ranks.add(flat))


@dataclass
class RowGradients:
    """Gradients of single rows, summed in the order of the rows of all ranks: the sum is the same for any number."""

    ranks: Ranks
    parameters: Sequence[Tensor]
    total: Tensor | None = None
    _rows: deque[Tensor] = field(default_factory=deque)
    _got: set[int] = field(default_factory=set)  # parameters that had a gradient

    @torch.no_grad()
    def take(self) -> None:
        """Take the gradient of the next row of this rank off the parameters."""
        self._got |= {number for number, one in enumerate(self.parameters) if one.grad is not None}
        row = torch.cat([_gradient(parameter) for parameter in self.parameters])
        for parameter in self.parameters:
            parameter.grad = None
        if self.ranks.size == 1:
            self._add(row)
        else:
            self._rows.append(row)

    @torch.no_grad()
    def write(self, owners: Sequence[int]) -> None:
        """Give the parameters the sum over all rows; `owners` are the ranks that have them, in order."""
        for number, parameter in enumerate(self.parameters):
            parameter.grad = torch.zeros_like(parameter) if number in self._got else None
        if self.ranks.size > 1:
            size, device = sum(one.numel() for one in self.parameters), self.parameters[0].device
            for owner in owners:
                own = owner == self.ranks.rank
                row = self._rows.popleft() if own else torch.empty(size, device=device)
                self._add(self.ranks.send(row, owner))
        used = _used(self.ranks, self.parameters)
        if self.total is not None:
            places = dict(zip(map(id, self.parameters), self.total.split([one.numel() for one in self.parameters])))
            for parameter in used:
                parameter.grad = places[id(parameter)].view_as(parameter).to(parameter.dtype)
        self.total, self._got = None, set()

    def _add(self, row: Tensor) -> None:
        self.total = torch.zeros_like(row) if self.total is None else self.total
        self.total += row


def _used(ranks: Ranks, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The parameters that have a gradient on some rank."""
    found = ranks.add(torch.tensor([float(parameter.grad is not None) for parameter in parameters]))
    return [parameter for parameter, count in zip(parameters, found.tolist()) if count]


def _buckets(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for parameter in parameters:
        if bucket and 4 * sum(one.numel() for one in bucket) >= BUCKET:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket


def _gradient(parameter: Tensor) -> Tensor:
    """The gradient as a flat vector in float32, whatever the weight has: sums in bf16 would depend on their order."""
    if parameter.grad is None:
        return torch.zeros(parameter.numel(), device=parameter.device)
    return parameter.grad.reshape(-1).float()


def _write(bucket: Sequence[Tensor], flat: Tensor) -> None:
    for parameter, values in zip(bucket, flat.split([one.numel() for one in bucket])):
        parameter.grad = values.view_as(parameter).to(parameter.dtype, copy=True)
