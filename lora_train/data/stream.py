"""The batches of a dataset for torch's DataLoader, in the order of training.

The trainer itself reads with `Prefetcher`. This is for loops that others write: the same batches, shared out among the
processes of a training and the workers of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ...dataset_cache import Batch, Dataset
from ...errors import TrainError
from .batch_plan import BatchPlan
from .order import Order, SetRule, read_columns
from .prefetch import HINT_AHEAD, refuse_plan


class BatchStream(IterableDataset[Batch]):
    """One epoch of batches, each of one bucket, as `train` draws them for the same seed and epoch.

    Give it to a DataLoader with `batch_size=None`. Process `rank` of `world_size` reads every `world_size`-th batch;
    its workers share those, and the DataLoader puts them back in order. `even=True` leaves out the last batches that
    not every process gets, for loops in which all must take the same number of steps.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 1,
        seed: int = 0,
        *,
        rank: int = 0,
        world_size: int = 1,
        even: bool = False,
        full_batches: bool = False,
        fields: Sequence[str] | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise TrainError(f"rank {rank} of {world_size}: expected a rank from 0 to {world_size - 1}")
        if batch_size < 1:
            raise TrainError(f"batch_size = {batch_size}: expected 1 or more")
        refuse_plan(dataset)
        rules = {name: SetRule.stored(facts) for name, facts in dataset.sets.items()}
        self.dataset, self.rank, self.world_size = dataset, rank, world_size
        self.order = Order(read_columns(dataset), seed, batch_size, rules, full_batches=full_batches)
        self._fields = fields
        self._batches = len(self.order) // world_size * world_size if even else len(self.order)
        # In shared memory: workers that live on between epochs have a copy of this object and would miss a change.
        self._place = torch.zeros(2, dtype=torch.int64).share_memory_()

    @property
    def epoch(self) -> int:
        return int(self._place[0])

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the epoch, before the loop over it. `start` batches of this process are skipped: they are done."""
        most = len(self._numbers(0))
        if epoch < 0 or not 0 <= start <= most:
            raise TrainError(f"epoch {epoch}, batch {start}: expected an epoch from 0 on, and a batch from 0 to {most}")
        self._place.copy_(torch.tensor([epoch, start]))

    def __len__(self) -> int:
        """Batches that this process still reads in the epoch."""
        return len(self._numbers(int(self._place[1])))

    def __iter__(self) -> Iterator[Batch]:
        plans = self._plans()
        hinted: list[BatchPlan] = []
        for plan in plans:
            self.dataset.will_need(plan.indices, plan.variants)
            hinted.append(plan)
            if len(hinted) > HINT_AHEAD:
                yield self._read(hinted.pop(0))
        yield from map(self._read, hinted)

    def _plans(self) -> Iterator[BatchPlan]:
        """What this worker reads: every n-th batch of its process, as the DataLoader takes them from n workers."""
        number, start = self._place.tolist()
        mine, worker = self._numbers(start), get_worker_info()
        if worker is not None:
            mine = mine[worker.id :: worker.num_workers]
        epoch = self.order.epoch(number)
        return (self.order.plan(epoch, place) for place in mine)

    def _numbers(self, start: int) -> range:
        """The places in the epoch of this process's batches."""
        return range(self._batches)[self.rank :: self.world_size][start:]

    def _read(self, plan: BatchPlan) -> Batch:
        return self.dataset.read_batch(plan.indices, variants=plan.variants or None, fields=self._fields)
