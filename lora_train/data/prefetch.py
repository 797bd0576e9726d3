"""Prefetching: a thread reads the next batches into a ring of buffers and uploads them while the current one trains."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...dataset_cache import Batch, BatchBuffers, Dataset, Samples
from ...errors import TrainError
from ..compute import can_pin, device_streams, is_accelerator
from .batch_plan import BatchPlan

Draw = Callable[[BatchPlan, Batch], tuple[Tensor, ...]]  # the random tensors of a batch, on the CPU

HINT_AHEAD = 8  # batches that the system is asked to read ahead


@dataclass(frozen=True)
class Upload:
    """A batch and its random tensors, being copied. `done` is None if nothing has to be copied."""

    batch: Batch
    drawn: tuple[Tensor, ...] = ()
    done: Any = None

    def tensors(self) -> list[Tensor]:
        """All copied tensors."""
        found = list(self.drawn)
        self.batch.map(lambda tensor: found.append(tensor) or tensor)
        return found


class Uploader:
    """Copies batches to an accelerator, on a stream of their own if it has streams. On the CPU nothing is copied."""

    def __init__(self, device: torch.device, streams: Any = None) -> None:
        self.device = device
        self.streams: Any = streams or (device_streams(device) if can_pin(device) else None)
        self.own = self.streams.Stream(device) if self.streams else None

    @property
    def pins(self) -> bool:
        """Whether to pin buffers: only then do copies overlap with other work."""
        return self.own is not None

    def send(self, batch: Batch, drawn: tuple[Tensor, ...] = ()) -> Upload:
        """Start the copy; the pinned source must not change until `finish`."""
        if self.own is None:
            return Upload(batch, drawn)
        with self.streams.stream(self.own):
            sent = batch.map(self._copy)
            drawn = tuple(self._copy(tensor.pin_memory()) for tensor in drawn)
            done = self.streams.Event()
            done.record(self.own)
        return Upload(sent, drawn, done)

    def receive(self, upload: Upload) -> Upload:
        """Make the upload safe to use on the current stream. Without streams it is copied now."""
        if self.own is None and is_accelerator(self.device):
            sent = upload.batch.map(lambda tensor: tensor.to(self.device))
            return Upload(sent, tuple(tensor.to(self.device) for tensor in upload.drawn))
        if self.own is not None:
            current = self.streams.current_stream(self.device)
            # Like wait_stream, but for this copy only: later batches may be copying already.
            current.wait_event(upload.done)
            # The copies were allocated on the other stream: without this, their memory could be reused too early.
            for tensor in upload.tensors():
                tensor.record_stream(current)
        return upload

    def finish(self, upload: Upload | None) -> None:
        """Wait until the source of this upload can be overwritten."""
        if upload is not None and upload.done is not None:
            upload.done.synchronize()

    def _copy(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)


@dataclass(frozen=True)
class Loaded:
    """A batch and its random tensors. They stay valid until the next batch is requested."""

    plan: BatchPlan
    batch: Batch
    drawn: tuple[Tensor, ...] = ()


@dataclass
class _Slot:
    """One buffer of the ring, and the upload that may still be reading from it."""

    buffers: BatchBuffers
    upload: Upload | None = None


class Prefetcher:
    """Iterates over batches in the order of their plans; use it in `with`, which joins its thread.

    `depth` batches are read ahead; with 0, each one is read when it is requested. `waited` is the total time in seconds
    that the consumer waited for data. `draw` runs on the thread too: drawing noise takes milliseconds per batch.
    `coming` are the same plans again, from the first one as far as the run goes: a remote dataset fetches them ahead.
    """

    def __init__(
        self,
        dataset: Dataset,
        plans: Iterable[BatchPlan],
        rows: int,
        depth: int = 2,
        device: torch.device | None = None,
        draw: Draw | None = None,
        coming: Iterable[BatchPlan] = (),
    ) -> None:
        refuse_plan(dataset)
        self._dataset, self._draw = dataset, draw
        self._plans, self._coming = self._hint(iter(plans)), coming
        self._uploader = Uploader(device or torch.device("cpu"))
        # One slot is in use by the consumer, `depth` are read ahead.
        self._slots = [_Slot(dataset.buffers(rows, pin=self._uploader.pins)) for _ in range(depth + 1)]
        self._free: queue.SimpleQueue[_Slot | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[tuple[BatchPlan, _Slot] | BaseException] = queue.SimpleQueue()
        self._held: _Slot | None = None
        self._ended: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="streamcache-prefetch", daemon=True) if depth else None
        self.waited = 0.0

    def __enter__(self) -> Prefetcher:
        for slot in self._slots:
            self._free.put(slot)
        if self._coming:
            self._dataset.coming((plan.indices, plan.variants) for plan in self._coming if plan.indices)
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop and join the thread; it ends after the batch that it is reading."""
        self._ended = self._ended or StopIteration()
        self._free.put(None)
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        if self._coming:
            self._dataset.coming(())

    def __iter__(self) -> Iterator[Loaded]:
        return self

    def __next__(self) -> Loaded:
        if self._ended is not None:
            raise self._ended
        if self._held is not None:
            self._free.put(self._held)
            self._held = None
        began = time.perf_counter()
        item = self._take()
        self.waited += time.perf_counter() - began
        if isinstance(item, BaseException):
            self._ended = item
            raise item
        plan, self._held = item
        assert self._held.upload is not None
        upload = self._uploader.receive(self._held.upload)
        return Loaded(plan, upload.batch, upload.drawn)

    def _take(self) -> tuple[BatchPlan, _Slot] | BaseException:
        if self._thread is None:
            return self._read_next()
        return self._ready.get()

    def _run(self) -> None:
        while self._ended is None:
            item = self._read_next()
            self._ready.put(item)
            if isinstance(item, BaseException):
                return

    def _read_next(self) -> tuple[BatchPlan, _Slot] | BaseException:
        """The next batch in a free slot, or the exception that the consumer will raise."""
        try:
            plan = next(self._plans)
            slot = self._free.get()
            if slot is None:
                return StopIteration()
            self._uploader.finish(slot.upload)
            batch, drawn = _nothing(), ()
            if plan.indices:
                batch = self._dataset.read_batch(plan.indices, variants=plan.variants or None, buffers=slot.buffers)
                drawn = () if self._draw is None else self._draw(plan, batch)
            slot.upload = self._uploader.send(batch, drawn)
            return plan, slot
        except BaseException as error:
            return error

    def _hint(self, plans: Iterator[BatchPlan]) -> Iterator[BatchPlan]:
        """The same plans; the system gets a read-ahead hint some batches before each one."""
        ahead: deque[BatchPlan] = deque()
        for plan in plans:
            if plan.indices:
                self._dataset.will_need(plan.indices, plan.variants)
            ahead.append(plan)
            if len(ahead) > HINT_AHEAD:
                yield ahead.popleft()
        yield from ahead


def _nothing() -> Batch:
    """The part of a rank that gets no rows of a small batch."""
    return Batch([], None, {}, list)


def refuse_plan(dataset: Samples) -> None:
    """Refuse a plan: encoders in the background would compete for memory and stall training."""
    if not dataset.encoded:
        raise TrainError(
            "the dataset is a plan that is not encoded yet, and encoders do not run during training; "
            "save it as a cache first, then train on the cache"
        )
