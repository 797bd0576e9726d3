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

from ...errors import CacheError
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
_FLUSH_SHARE = 0.02  # of the time may be spent on making entries durable
_FLUSH_SECONDS = 30.0  # entries are durable after this time, however slow the disk is
_PAUSES = (0.2, 0.5)  # seconds before images that could not be read are tried again
_SORTED = 1024  # captions that are tokenized and sorted by length before the first of them is encoded


Captions = dict[bytes, tuple[str, Planned]]  # key → caption, and the first sample that needs it


class Stopped(Exception):
    """The user asked to stop. Encoded entries are kept."""


class WriteBehind:
    """Stores entries in a thread of its own. Use it in `with`: leaving it waits until everything is stored.

    Entries are made durable as often as that takes 2% of the time: after a fraction of a second on most disks, so a
    kill loses little more than the batch in the encoder.
    """

    def __init__(self, writer: CacheWriter) -> None:
        self._writer = writer
        self.bytes = self.text_bytes = 0  # of all tensors so far, and of conditionings, before deduplication
        self._queue: queue.Queue[list[Entry] | None] = queue.Queue(_BATCHES)
        self._error: BaseException | None = None
        self._due: float | None = None  # when entries that are not durable yet must be
        self._interval = 0.0
        self._flushed_at = time.monotonic()
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
        while (entries := self._next()) is not None:
            if self._error is not None:
                continue  # keep draining, so that `put` never blocks on a full queue
            try:
                self._store(entries)
            except BaseException as error:
                self._error, self._due = error, None

    def _next(self) -> list[Entry] | None:
        """The next entries; none if a flush is due first; None at the end."""
        try:
            return self._queue.get(timeout=None if self._due is None else max(0.0, self._due - time.monotonic()))
        except queue.Empty:
            return []

    def _store(self, entries: list[Entry]) -> None:
        for key, structure, name in entries:
            self._writer.put(key, structure, name)
            size = nbytes(structure)
            self.bytes += size
            self.text_bytes += size if name == "conditioning" else 0
        if entries and self._due is None:
            self._due = self._flushed_at + self._interval
        if self._due is not None and time.monotonic() >= self._due:
            began = time.monotonic()
            self._writer.flush()
            self._due, self._flushed_at = None, time.monotonic()
            self._interval = min((self._flushed_at - began) / _FLUSH_SHARE, _FLUSH_SECONDS)


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
    unreadable: set[str] = field(default_factory=set)  # origins of samples whose files cannot be read now
    settled: bool = True  # False: a file must be read again next time
    encoded: set[str] = field(default_factory=set)  # origins of samples that got new entries
    kept: Mapping[str, int] = field(default_factory=dict)  # by phase: items that are reused without being looked at
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

    def judge(self, prepared: Prepared) -> None:
        """Note whether the sample's files can be used. Another attempt replaces what an earlier one found."""
        origin = prepared.sample.origin
        self.failures.pop(origin, None)
        self.unreadable.discard(origin)
        if prepared.problem:
            self.failures[origin] = prepared.problem
        if prepared.unreadable:
            self.unreadable.add(origin)

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
    missing, stored = _missing_captions(run)
    todo = sorted(missing.items(), key=lambda item: len(item[1][0]))
    clock = _Clock(run, "captions", len(todo), len(stored))
    done = 0
    with Phase(encoder, run.plan.settings.text_batch_size) as phase:
        for start in range(0, len(todo), _SORTED):
            # Captions of one length next to each other: they can share forwards, and need no padding.
            part = sorted(todo[start : start + _SORTED], key=lambda item: phase.length(item[1][0]))
            rest = iter(part)
            for made in phase.encode([caption for _, (caption, _) in part]):
                for value, (key, (_, sample)) in zip(made, rest):
                    run.store(sample, "conditioning", key, value)
                run.send()
                done += len(made)
                clock.tick(done)
        if todo:  # otherwise the model would be loaded for it; what the last run found is kept
            every = {**stored, **missing}
            run.report.cut |= {key.hex(): every[key][1].name for key in every if phase.cuts(every[key][0])}


def encode_images(run: Run) -> None:
    """Decode and encode every image of which an entry is missing: latents, masks, thumbnails."""
    recipe, settings = run.plan.recipe, run.plan.settings
    preparer = Preparer(recipe, run.writer.has)
    todo = [sample for sample in run.layout.samples if not sample.content or preparer.missing(sample)]
    # Bucket by bucket: each leaves at most one partial batch, and only one bucket is in memory.
    todo.sort(key=lambda sample: sample.target)
    clock = _Clock(run, "images", len(todo), len(run.layout.samples) - len(todo))
    depth = settings.decoders + 2 * settings.batch_size
    try:
        with Phase(run.plan.image_encoder, settings.batch_size) as phase:
            batches, total = _Batches(run, phase), len(todo)
            for pause in (0.0, *_PAUSES):
                time.sleep(pause)
                for done, prepared in enumerate(_ahead(preparer, todo, settings.decoders, depth), 1):
                    last = done == len(todo) or todo[done].target != todo[done - 1].target
                    if batches.take(prepared, last):
                        clock.tick(total - len(todo) + done)
                todo = _left(run, preparer, todo)
                if not todo:
                    break
            clock.tick(total)
    finally:
        run.plan.counts.decoded += preparer.decoded
    run.settled &= not run.unreadable


def _left(run: Run, preparer: Preparer, samples: list[Planned]) -> list[Planned]:
    """The samples that could not be read, and those that share an entry that such a sample was to make."""
    if not run.failures:
        return []
    readable = {s.origin for s in samples if s.origin not in run.failures}
    return [s for s in samples if s.origin in run.unreadable or (s.origin in readable and preparer.missing(s))]


class _Clock:
    """Reports the progress of one phase."""

    def __init__(self, run: Run, phase: str, total: int, hits: int) -> None:
        self._run, self._phase, self._total, self._hits = run, phase, total, hits + run.kept.get(phase, 0)
        self._started = time.monotonic()
        if total:
            self.tick(0)  # loading the encoder may take long

    def tick(self, done: int) -> None:
        """Called between two batches. Raises Stopped if the user asked to stop."""
        seconds = time.monotonic() - self._started
        bytes_so_far = self._run.output.bytes
        self._run.progress(EncodeProgress(self._phase, done, self._total, seconds, self._hits, bytes_so_far))
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
        self._run.judge(prepared)
        if not prepared.problem:
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
            f"the image encoder returned a latent {found} for {width}×{height} pixels, expected "
            f"[1, …, {expected[0]}, {expected[1]}] for its downscale factor of {downscale}"
        )


def _missing_captions(run: Run) -> tuple[Captions, Captions]:
    """The captions to encode, and those that are stored already."""
    missing: Captions = {}
    stored: Captions = {}

    def want(caption: str, sample: Planned) -> None:
        key = run.plan.recipe.conditioning_key(caption)
        (stored if run.writer.has(key) else missing).setdefault(key, (caption, sample))

    for sample in run.layout.samples:
        for caption in sample.item.captions:
            want(caption, sample)
    for _, caption in named_captions(run.plan):
        want(caption, run.layout.samples[0])
    return missing, stored


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
