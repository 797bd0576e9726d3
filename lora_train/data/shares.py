"""The shares of a step: of its batches, its ranks and its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from ...dataset_cache import Batch
from ..ranks import ALONE, Ranks
from .batch_plan import BatchPlan
from .prefetch import Loaded


def split_rows(loaded: Loaded) -> list[Loaded]:
    """The rows of a batch, each as a batch of its own."""
    plan, batch = loaded.plan, loaded.batch
    fields = {name: batch.fields[name] for name in batch.fields}
    return [
        Loaded(
            plan.batch.part(plan.first + row, plan.first + row + 1),
            Batch(
                [batch.indices[row]],
                None if batch.latents is None else batch.latents[row : row + 1],
                {name: values[row : row + 1] for name, values in fields.items()},
                lambda row=row: [batch.captions[row]],
            ),
            tuple(drawn[row : row + 1] for drawn in loaded.drawn),
        )
        for row in range(len(plan.indices))
    ]


def share_windows(plans: Iterator[BatchPlan], accumulate: int, ranks: Ranks = ALONE) -> Iterator[BatchPlan]:
    """The plans with their share of the step's rows, so that accumulated batches are weighted by their size.

    Of several ranks, each gets its part of every batch.
    """
    if ranks.size > 1:
        plans = (plan.part(*ranks.share(len(plan.indices))) for plan in share_windows(plans, accumulate))
        accumulate = 1
    if accumulate == 1:
        yield from plans
        return
    while window := list(islice(plans, accumulate)):
        rows = sum(len(plan.indices) for plan in window)
        yield from (replace(plan, share=len(plan.indices) / rows) for plan in window)
