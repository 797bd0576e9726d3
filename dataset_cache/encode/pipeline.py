"""The pipeline of a run: captions first, then images; each encoder is loaded once, and only if needed.

Threads decode images ahead of the encoder, and one thread stores entries behind it, so the encoder sets the pace.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import CacheError
from ..format import iter_tensors
from ..sources import UNSETTLED, FileRecord, SourceMemory
from ..write import CacheWriter
from .encoders import Failure, Phase
from .plan import Plan, named_captions
from .prepare import Entry, Prepared, Preparer
from .recipe import Planned
from .report import EncodeProgress, EncodeReport, MissingEntry, explain
from .survey import Layout

_COMMIT = 256  # files between two commits of the memory
_BATCHES = 8  # waiting to be stored, at most


class Stopped(Exception):
    """The user asked to stop. Encoded entries are kept."""


class WriteBehind:
    """Stores entries in a thread of its own. Use it in `with`: leaving it waits until everything is stored."""

    def __init__(self, writer: CacheWriter) -> None:
        self._writer = writer
        self.bytes = 0  # of all tensors so far, before deduplication
        self._queue: queue.Queue[list[Entry] | None] = queue.Queue(_BATCHES)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="streamcache-write", daemon=True)

    def __enter__(self) -> WriteBehind:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._queue.put(None)
        self._thread.join()
        if kind is None and self._error is not None:
            raise self._error

    def put(self, entries: list[Entry]) -> None:
        if self._error is not None:
            raise self._error
        self._queue.put(entries)

    def _run(self) -> None:
        while (entries := self._queue.get()) is not None:
            if self._error is not None:
                continue  # keep draining, so that `put` never blocks on a full queue
            try:
                for key, structure, name in entries:
                    self._writer.put(key, structure, name)
                    self.bytes += nbytes(structure)
            except BaseException as error:
                self._error = error


@dataclass
class Run:
    """One run over a plan: what it shares between the phases, and what it found out.

    `failures` are by an entry's key, or by a sample's origin if its file is at fault.
    """

    plan: Plan
    layout: Layout
    memory: SourceMemory
    writer: CacheWriter
    output: WriteBehind
    report: EncodeReport
    progress: Callable[[EncodeProgress], None]
    stop: Callable[[], bool]
    dropped: Mapping[bytes, str]  # entries that repair removed from the cache, and why
    failures: dict[bytes | str, str] = field(default_factory=dict)
    settled: bool = True  # False: a file must be read again next time
    encoded: set[str] = field(default_factory=set)  # origins of samples that got new entries
    _records: list[FileRecord] = field(default_factory=list)
    _made: list[MissingEntry] = field(default_factory=list)
    _outbox: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settled = self.layout.settled

    def store(self, sample: Planned, name: str, key: bytes, value: Any) -> None:
        """Store an entry with the next `send`, or note why it failed."""
        if isinstance(value, Failure):
            self.failures[key] = value.reason
            return
        self._made.append((sample, name, key))
        self._outbox.append((key, value, name))

    def send(self) -> None:
        """Hand the waiting entries to the storing thread. Once per batch: each hand-over costs a thread switch."""
        if self._outbox:
            self.output.put(self._outbox)
            self._outbox = []

    def remember(self, record: FileRecord | None) -> None:
        """Keep what reading a file revealed, for the next run."""
        if record is not None:
            self._records.append(record)
            self.settled &= record[2] != UNSETTLED
        if len(self._records) >= _COMMIT:
            self._commit()

    def finish(self) -> None:
        """Save what was remembered, and report why each entry was encoded: done last, as it would delay encoding."""
        self._commit()
        self.encoded |= {sample.origin for sample, _, _ in self._made}
        self.report.made += explain(self._made, self.plan.recipe, self.memory, self.dropped)
        self._made = []

    def _commit(self) -> None:
        self.memory.remember_files(self._records)
        self._records = []


def encode_captions(run: Run) -> None:
    """Encode every caption that is not stored yet, once, however many samples share it."""
    encoder = run.plan.text_encoder
    if encoder is None:
        return
    # Sorted by length, so that batches need little padding.
    todo = sorted(_missing_captions(run).items(), key=lambda item: len(item[1][0]))
    clock = _Clock(run, "captions", len(todo))
    done = 0
    with Phase(encoder, run.plan.settings.text_batch_size) as phase:
        for made in phase.encode([caption for _, (caption, _) in todo]):
            for (key, (_, sample)), value in zip(todo[done : done + len(made)], made):
                run.store(sample, "conditioning", key, value)
            run.send()
            done += len(made)
            clock.tick(done)


def encode_images(run: Run) -> None:
    """Decode and encode every image of which an entry is missing: latents, masks, thumbnails."""
    recipe, settings = run.plan.recipe, run.plan.settings
    preparer = Preparer(recipe, run.writer.has)
    todo = [sample for sample in run.layout.samples if not sample.content or preparer.missing(sample)]
    # Bucket by bucket: each leaves at most one partial batch, and only one bucket is in memory.
    todo.sort(key=lambda sample: sample.target)
    clock = _Clock(run, "images", len(todo))
    depth = settings.decoders + 2 * settings.batch_size
    try:
        with Phase(run.plan.image_encoder, settings.batch_size) as phase:
            batches = _Batches(run, phase)
            for done, prepared in enumerate(_ahead(preparer, todo, settings.decoders, depth), 1):
                last = done == len(todo) or todo[done].target != todo[done - 1].target
                if batches.take(prepared, last):
                    clock.tick(done)
            clock.tick(len(todo))
    finally:
        run.plan.counts.decoded += preparer.decoded


class _Clock:
    """Reports the progress of one phase."""

    def __init__(self, run: Run, phase: str, total: int) -> None:
        self._run, self._phase, self._total = run, phase, total
        self._started = time.monotonic()
        if total:
            self.tick(0)  # loading the encoder may take long

    def tick(self, done: int) -> None:
        """Called between two batches. Raises Stopped if the user asked to stop."""
        seconds = time.monotonic() - self._started
        hits = max(0, len(self._run.layout.samples) - self._total)
        self._run.progress(EncodeProgress(self._phase, done, self._total, seconds, hits, self._run.output.bytes))
        if self._run.stop():
            raise Stopped


class _Batches:
    """Collects prepared images until there are enough of one size for a batch."""

    def __init__(self, run: Run, phase: Phase) -> None:
        self._run, self._phase = run, phase
        self._waiting: dict[tuple[int, ...], list[tuple[bytes, torch.Tensor, Planned]]] = {}
        self._taken = 0

    def take(self, prepared: Prepared, last: bool) -> bool:
        """True after every batch. After the `last` sample of a bucket nothing is left waiting."""
        self._taken += 1
        self._run.remember(prepared.record)
        if prepared.problem:
            self._run.failures[prepared.sample.origin] = prepared.problem
        else:
            for key, structure, name in prepared.entries:
                self._run.store(prepared.sample, name, key, structure)
            for key, pixels in prepared.images:
                self._waiting.setdefault(tuple(pixels.shape), []).append((key, pixels, prepared.sample))
        ready = [shape for shape, found in self._waiting.items() if last or len(found) >= self._phase.batch_size]
        for shape in ready:
            self._encode(self._waiting.pop(shape))
        # Masks and thumbnails form no batches of their own, but are stored at intervals as well, so a stop keeps them.
        due = last or bool(ready) or self._taken % self._phase.batch_size == 0
        if due:
            self._run.send()
        return due

    def _encode(self, batch: list[tuple[bytes, torch.Tensor, Planned]]) -> None:
        done = 0
        for made in self._phase.encode([pixels for _, pixels, _ in batch]):
            for (key, pixels, sample), latent in zip(batch[done : done + len(made)], made):
                if not isinstance(latent, Failure):
                    _check_latent(latent["samples"], pixels, self._run.plan.recipe.downscale)
                self._run.store(sample, "latent", key, latent)
            self._run.send()
            done += len(made)


def _check_latent(latent: torch.Tensor, pixels: torch.Tensor, downscale: int) -> None:
    height, width = pixels.shape[-3:-1]
    found, expected = tuple(latent.shape), (height // downscale, width // downscale)
    if found[-2:] != expected or found[0] != 1:
        raise CacheError(
            f"the image encoder returned a latent {found} for {width} × {height} pixels, expected "
            f"[1, …, {expected[0]}, {expected[1]}] for its downscale factor of {downscale}"
        )


def _missing_captions(run: Run) -> dict[bytes, tuple[str, Planned]]:
    """Key → caption, and the first sample that needs it."""
    missing: dict[bytes, tuple[str, Planned]] = {}

    def want(caption: str, sample: Planned) -> None:
        key = run.plan.recipe.conditioning_key(caption)
        if key not in missing and not run.writer.has(key):
            missing[key] = caption, sample

    for sample in run.layout.samples:
        for caption in sample.item.captions:
            want(caption, sample)
    for _, caption in named_captions(run.plan):
        want(caption, run.layout.samples[0])
    return missing


def _ahead(
    prepare: Callable[[Planned], Prepared], samples: list[Planned], threads: int, depth: int
) -> Iterator[Prepared]:
    """Prepared samples in order, prepared at most `depth` ahead."""
    waiting: deque[Future[Prepared]] = deque()
    pool = ThreadPoolExecutor(threads, "streamcache-decode")
    try:
        for sample in samples:
            waiting.append(pool.submit(prepare, sample))
            if len(waiting) > depth:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def nbytes(structure: Any) -> int:
    """The bytes of all tensors in a structure."""
    return sum(tensor.numel() * tensor.element_size() for tensor in iter_tensors(structure))
