"""Splits ComfyUI's latent batches into single samples, each with the conditioning of its row."""

from collections.abc import Iterator
from typing import Any

import torch

from ...errors import CacheError
from ..format import codec_for

Entry = list  # [tensor, dict], one entry of a conditioning


def split_rows(latent: Any, conditioning: Any, place: str, remedy: str) -> Iterator[tuple[Any, list[Entry], str]]:
    """The single samples of a latent and its conditioning, each with a suffix for its name.

    A batch of one keeps its dict and all entries of its conditioning. Errors name `place` and `remedy`.
    """
    rows = _count_rows(latent, place, remedy)
    _check_conditioning(conditioning, place, remedy)
    if rows == 1:
        yield latent, conditioning, ""
        return
    for i in range(rows):
        yield _latent_row(latent, i, rows), _conditioning_row(conditioning, i, rows, place), f".{i}"


def _count_rows(latent: Any, place: str, remedy: str) -> int:
    samples = latent.get("samples") if isinstance(latent, dict) else None
    if samples is not None and not isinstance(samples, torch.Tensor) and codec_for(samples):
        return 1  # several tensors that belong together, such as video with sound, are one sample
    if not isinstance(samples, torch.Tensor):
        raise CacheError(f"{place}: the latent is not a dict with a tensor 'samples'; {remedy}")
    if samples.ndim < 3 or samples.shape[0] == 0:
        raise CacheError(
            f"{place}: the latent has shape {tuple(samples.shape)}, expected [batch, channels, …] with batch ≥ 1"
        )
    return samples.shape[0]


def _check_conditioning(conditioning: Any, place: str, remedy: str) -> None:
    if not isinstance(conditioning, list) or not conditioning:
        raise CacheError(f"{place}: the conditioning is not a list of [tensor, dict] entries; {remedy}")
    for i, entry in enumerate(conditioning):
        fits = isinstance(entry, list | tuple) and len(entry) == 2
        if not fits or not isinstance(entry[0], torch.Tensor) or not isinstance(entry[1], dict):
            raise CacheError(f"{place}: entry {i} of the conditioning is not [tensor, dict]; {remedy}")


def _latent_row(latent: dict, i: int, rows: int) -> dict:
    """Row i as a latent. A mask with fewer rows repeats over the batch, as in ComfyUI."""
    row = dict(latent, samples=latent["samples"][i : i + 1])
    mask, numbers = latent.get("noise_mask"), latent.get("batch_index")
    if isinstance(mask, torch.Tensor) and mask.ndim > 0 and mask.shape[0] > 1:
        j = i % mask.shape[0]
        row["noise_mask"] = mask[j : j + 1]
    if isinstance(numbers, list) and len(numbers) == rows:
        row["batch_index"] = numbers[i : i + 1]
    return row


def _conditioning_row(conditioning: list[Entry], i: int, rows: int, place: str) -> list[Entry]:
    """The conditioning of row i: entry i if there is one per row (Resolution Bucket), or row i of a single entry."""
    if len(conditioning) == rows:
        return [conditioning[i]]
    if len(conditioning) > 1:
        raise CacheError(
            f"{place}: {rows} latents with {len(conditioning)} conditioning entries; "
            "save the dataset again with one conditioning per latent"
        )
    tensor, options = conditioning[0]
    if tensor.ndim < 2 or tensor.shape[0] not in (1, rows):
        raise CacheError(
            f"{place}: {rows} latents with a conditioning of shape {tuple(tensor.shape)}, expected 1 or {rows} rows"
        )
    return [[_row_of(tensor, i, rows), {key: _row_of(value, i, rows) for key, value in options.items()}]]


def _row_of(value: Any, i: int, rows: int) -> Any:
    batched = isinstance(value, torch.Tensor) and value.ndim > 1 and value.shape[0] == rows
    return value[i : i + 1] if batched else value
