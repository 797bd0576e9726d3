"""The first phase of a run: every caption that is not stored yet is encoded once, however many samples share it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .phase import Phase
from .plan import Plan
from .recipe import Planned
from .work import Clock, Work

EMPTY = "empty caption"


def named_captions(plan: Plan) -> Iterator[tuple[str, str]]:
    """Captions that the dataset knows by name: the empty one, for caption dropout, and the prompts of class sets."""
    if plan.text_encoder is not None:
        yield EMPTY, ""
        yield from ((f"prompt of {s.set}", s.prompt) for s in plan.sources if s.prompt is not None)


def encode_captions(work: Work) -> None:
    if work.plan.text_encoder is None:
        return
    # Alike in length, so that little of a batch is padding.
    todo = sorted(_missing(work).items(), key=lambda item: len(item[1][0]))
    clock = Clock(work, "captions", len(todo))
    done = 0
    with Phase(work.plan.text_encoder, work.plan.settings.text_batch_size) as phase:
        for made in phase.encode([caption for _, (caption, _) in todo]):
            for (key, (_, sample)), value in zip(todo[done : done + len(made)], made):
                work.store(sample, "conditioning", key, value)
            work.send()
            done += len(made)
            clock.tick(done)


def _missing(work: Work) -> dict[bytes, tuple[str, Planned]]:
    """Key → caption, and the first sample that needs it."""
    missing: dict[bytes, tuple[str, Planned]] = {}

    def want(caption: str, sample: Any) -> None:
        key = work.plan.recipe.conditioning_key(caption)
        if key not in missing and not work.writer.has(key):
            missing[key] = caption, sample

    for sample in work.layout.samples:
        for caption in sample.item.captions:
            want(caption, sample)
    for _, caption in named_captions(work.plan):
        want(caption, work.layout.samples[0])
    return missing
