"""Ranks of torch.distributed, as `torchrun` or another launcher starts them."""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from ...errors import TrainError
from .agreement import FINE, MESSAGE, RankLost, describe, kind_of, lost, raised_by
from .ranks import ALONE, Ranks, T

ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what every launcher sets
TIMEOUT, SECONDS = "STREAMCACHE_RANK_TIMEOUT", 1800.0  # rank 0 may draw and save for long while the others wait
GRACE = 3.0  # seconds in which the ranks that wait say so, after one was lost


@contextmanager
def open_ranks(environment: Mapping[str, str] = os.environ) -> Iterator[Ranks]:
    """The ranks that a launcher has started, connected inside the `with`; a single process trains alone.

    An error inside ends the others too. At the end, all wait for the last one.
    """
    if any(name not in environment for name in ENVIRONMENT) or int(environment["WORLD_SIZE"]) == 1:
        yield ALONE
        return
    limit = datetime.timedelta(seconds=float(environment.get(TIMEOUT) or SECONDS))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    try:
        dist.init_process_group(backend, rank=rank, world_size=size, timeout=limit)
    except (RuntimeError, ValueError, OSError) as error:
        place = f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
        raise TrainError(f"rank {rank} of {size}: could not meet the others at {place} ({error}); check that all "
                         "are started and that the port is free and reachable") from None  # fmt: skip
    group = Group(rank, size, int(environment.get("LOCAL_RANK", 0)))
    try:
        with group.lasting():
            yield group
    finally:
        dist.destroy_process_group()


@dataclass(eq=False)
class Group(Ranks):
    """This process and the others, connected by a process group.

    Every meeting begins with an agreement: a few bytes that say whether all are fine. So a rank that fails anywhere
    meets the others wherever they are next. What follows within the same meeting must not fail.
    """

    told: bool = False  # all know that the training ends
    broken: bool = False  # a rank was lost: there are no more meetings
    meetings: int = field(default=0, repr=False)

    def any(self, flag: bool) -> bool:
        return self._agree(flag)

    def from_first(self, value: T) -> T:
        self._agree()
        return json.loads(self._texts(json.dumps(value if self.leads else None))[0])

    def gather(self, text: str) -> list[str]:
        self._agree()
        return self._texts(text)

    @contextmanager
    def together(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.tell(error)
            raise
        self._agree()

    def add(self, values: Tensor) -> Tensor:
        self._call(lambda: dist.all_reduce(values))
        return values

    def send(self, values: Tensor, source: int) -> Tensor:
        self._call(lambda: dist.broadcast(values, source))
        return values

    def tell(self, error: BaseException) -> None:
        if self.told or self.broken:
            return
        with suppress(RankLost):
            self._meet(kind_of(error), False)
            self.told = True
            self._messages(describe(error))

    @contextmanager
    def lasting(self) -> Iterator[None]:
        """Inside the `with`, the ranks train. None ends before rank 0 has saved what it can."""
        try:
            with self.together():
                yield
        finally:
            with suppress(RankLost):
                if not self.broken:
                    self._call(dist.barrier)

    def _agree(self, flag: bool = False) -> bool:
        kind, found = self._meet(FINE, flag)
        if kind != FINE:
            self.told = True
            raise raised_by(kind, self._messages(""))
        return bool(found)

    def _meet(self, kind: int, flag: bool) -> list[int]:
        news = torch.tensor([kind, flag], dtype=torch.int32)
        self._call(lambda: dist.all_reduce(news, dist.ReduceOp.MAX))
        return news.tolist()

    def _messages(self, message: str) -> list[str]:
        return self._texts(message.encode()[:MESSAGE].decode(errors="ignore"))

    def _texts(self, text: str) -> list[str]:
        data = torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._call(lambda: dist.all_gather(sizes, torch.tensor([len(data)])))
        longest = int(max(sizes))
        padded = torch.cat([data, torch.zeros(longest - len(data), dtype=torch.uint8)])
        found = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        self._call(lambda: dist.all_gather(found, padded))
        return [bytes(one[: int(size)].tolist()).decode().strip("\0") for one, size in zip(found, sizes)]

    def _call(self, operation: Callable[[], Any]) -> None:
        if self.broken:
            raise RankLost("another rank does not answer")
        self.meetings += 1
        try:
            operation()
        except RuntimeError as error:
            self.broken = True
            raise self._who_is_missing(str(error)) from None

    def _who_is_missing(self, reason: str) -> RankLost:
        """Those that wait at the same meeting say so; the others are missing."""
        place = f"streamcache/{self.meetings}/"
        waiting: list[int] = []
        with suppress(RuntimeError, ValueError):  # the launcher has ended too
            store = dist.distributed_c10d._get_default_store()
            store.set(f"{place}{self.rank}", "waits")
            time.sleep(GRACE)
            waiting = [rank for rank in range(self.size) if store.check([f"{place}{rank}"])]
        missing = [rank for rank in range(self.size) if waiting and rank not in waiting]
        return lost(waiting, missing, reason)
