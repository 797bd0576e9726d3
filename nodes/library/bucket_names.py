"""Bucket names: what a bucket is called on a page: its size in pixels, or its latent's shape where that is unknown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...dataset_cache import CacheError, Manifest, open_index

_LISTED = 500  # buckets; more than a page can show
_LOOKED_AT = 256  # samples: enough to learn how many pixels a latent pixel covers


def bucket_names(samples: np.ndarray, buckets: Sequence[dict[str, Any]]) -> list[str]:
    """A name for every bucket. The first samples tell the scale of latents with as many channels as theirs."""
    scales: dict[int, tuple[int, int]] = {}
    for number, crop in zip(samples["bucket"][:_LOOKED_AT].tolist(), samples["crop"][:_LOOKED_AT].tolist()):
        if number < len(buckets):
            shape, (width, height) = buckets[number]["shape"], crop[2:]
            if len(shape) >= 3 and shape[-1] and shape[-2] and width > 0 and height > 0:
                scales.setdefault(shape[0], (width // shape[-1], height // shape[-2]))
    return [_name(bucket["shape"], scales.get(bucket["shape"][0] if bucket["shape"] else 0)) for bucket in buckets]


def peek_bucket_names(folder: Path, manifest: Manifest) -> list[str]:
    """The same, from the first rows of an index that is not open."""
    try:
        index = open_index(folder, manifest, check=False)
        return bucket_names(index.arrays.samples[:_LOOKED_AT], manifest.buckets)
    except (CacheError, OSError):
        return [_name(bucket["shape"], None) for bucket in manifest.buckets]


def count_by_name(names: Sequence[str], buckets: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Samples by name, the fullest buckets first."""
    counts: dict[str, int] = {}
    for name, bucket in zip(names, buckets):
        number = bucket.get("samples")
        counts[name] = counts.get(name, 0) + (number if type(number) is int else 0)
    filled = [(name, number) for name, number in counts.items() if number > 0]
    ordered = sorted(filled, key=lambda row: (-row[1], row[0]))
    return [{"name": name, "samples": number} for name, number in ordered[:_LISTED]]


def _name(shape: Sequence[int], scale: tuple[int, int] | None) -> str:
    if scale is None or not all(scale) or len(shape) < 3:
        return "×".join(map(str, shape))
    *frames, height, width = shape[1:]
    return "×".join(map(str, [width * scale[0], height * scale[1], *frames]))
