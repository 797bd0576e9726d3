"""The columns of a dataset that decide the order, read once and checked for holes before anything trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import TrainError

NEEDED = ("latent", "conditioning")


@dataclass(frozen=True)
class Columns:
    """Flat arrays over the samples of a dataset."""

    bucket: np.ndarray
    repeats: np.ndarray
    set: np.ndarray  # numbers into `sets`
    sets: tuple[str, ...] = ("main",)
    variants: Mapping[str, np.ndarray] = field(default_factory=dict)


def read_columns(dataset: Any) -> Columns:
    """The columns of a cache; a hole in a field that training needs is an error that names the sample."""
    if not len(dataset):
        raise TrainError("the dataset has no samples; encode some images into it first")
    variants = {name: np.asarray(dataset.variants(name)) for name in dataset.fields}
    for name in NEEDED:
        _refuse_holes(dataset, name, variants.get(name))
    if "mask" in variants:
        _refuse_unaligned(dataset, variants["latent"], variants["mask"])
    bucket, repeats, sets = (np.asarray(dataset.column(name)) for name in ("bucket", "repeats", "set"))
    return Columns(bucket, repeats, sets, tuple(dataset.sets), variants)


def _refuse_holes(dataset: Any, name: str, counts: np.ndarray | None) -> None:
    holes = np.arange(len(dataset)) if counts is None else np.flatnonzero(counts == 0)
    if len(holes):
        first = int(holes[0])
        raise TrainError(
            f"sample {first} ({dataset.source(first)}): has no {name} ({len(holes):,} of {len(dataset):,} samples have "
            "none); encode the dataset again, which adds only what is missing"
        )


def _refuse_unaligned(dataset: Any, latents: np.ndarray, masks: np.ndarray) -> None:
    wrong = np.flatnonzero((masks != 0) & (masks != latents))
    if len(wrong):
        first = int(wrong[0])
        raise TrainError(
            f"sample {first} ({dataset.source(first)}): has {masks[first]} masks for {latents[first]} latents, "
            "and a flipped latent needs its flipped mask; encode the dataset again"
        )
