"""The second phase of a run: pictures. Threads decode ahead of the encoder, which gets batches of one size."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from ..errors import CacheError
from .phase import Failure, Phase
from .prepare import Prepared, Preparer
from .recipe import Planned
from .work import Clock, Work

Waiting = dict[tuple[int, ...], list[tuple[bytes, torch.Tensor, Planned]]]


def encode_pictures(work: Work) -> None:
    preparer = Preparer(work.plan.recipe, work.writer.has)
    todo = [sample for sample in work.layout.samples if not sample.content or preparer.missing(sample)]
    # A bucket at a time: each leaves at most one batch that is not full, and memory holds one bucket's.
    todo.sort(key=lambda sample: sample.target)
    clock = Clock(work, "pictures", len(todo))
    settings = work.plan.settings
    depth = settings.decoders + 2 * settings.batch_size
    try:
        with Phase(work.plan.image_encoder, settings.batch_size) as phase:
            bench = _Bench(work, phase)
            for done, prepared in enumerate(_ahead(preparer, todo, settings.decoders, depth), 1):
                last = done == len(todo) or todo[done].target != todo[done - 1].target
                if bench.take(prepared, last):
                    clock.tick(done)
            clock.tick(len(todo))
    finally:
        work.plan.counts.decoded += preparer.decoded


class _Bench:
    """Collects prepared pictures until there are enough of one size for a batch."""

    def __init__(self, work: Work, phase: Phase) -> None:
        self._work, self._phase = work, phase
        self._waiting: Waiting = {}
        self._taken = 0

    def take(self, prepared: Prepared, last: bool) -> bool:
        """True after every batch. After the `last` sample of a bucket nothing is left waiting."""
        self._taken += 1
        self._work.remember(prepared.remember)
        if prepared.problem:
            self._work.failures[prepared.sample.origin] = prepared.problem
        else:
            for key, structure, name in prepared.entries:
                self._work.store(prepared.sample, name, key, structure)
            for key, pixels in prepared.pictures:
                self._waiting.setdefault(tuple(pixels.shape), []).append((key, pixels, prepared.sample))
        ready = [shape for shape, found in self._waiting.items() if last or len(found) >= self._phase.batch_size]
        for shape in ready:
            self._encode(self._waiting.pop(shape))
        # Masks and thumbnails alone make no batches, but they too are stored, and may be stopped, at intervals.
        due = last or bool(ready) or self._taken % self._phase.batch_size == 0
        if due:
            self._work.send()
        return due

    def _encode(self, batch: list[tuple[bytes, torch.Tensor, Planned]]) -> None:
        done = 0
        for made in self._phase.encode([pixels for _, pixels, _ in batch]):
            for (key, pixels, sample), latent in zip(batch[done : done + len(made)], made):
                self._check(latent, pixels)
                self._work.store(sample, "latent", key, latent)
            self._work.send()
            done += len(made)

    def _check(self, latent: dict[str, torch.Tensor] | Failure, pixels: torch.Tensor) -> None:
        if isinstance(latent, Failure):
            return
        scale = self._work.plan.recipe.downscale
        expected = pixels.shape[0] // scale, pixels.shape[1] // scale
        found = tuple(latent["samples"].shape)
        if found[-2:] != expected or found[0] != 1:
            raise CacheError(
                f"the image encoder gave a latent {found} for {pixels.shape[1]} × {pixels.shape[0]} pixels, "
                f"expected [1, …, {expected[0]}, {expected[1]}] with its downscale of {scale}"
            )


def _ahead(
    prepare: Callable[[Planned], Prepared], samples: list[Planned], threads: int, depth: int
) -> Iterator[Prepared]:
    """Prepared samples in order, at most `depth` of them before they are asked for."""
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
