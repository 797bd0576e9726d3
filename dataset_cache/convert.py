"""Conversion: a training dataset that ComfyUI's own nodes wrote becomes a cache, with one shard in memory at most."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .errors import CacheError
from .foreign import ForeignDataset, Item, open_foreign
from .writer import CacheWriter

Entry = list  # [tensor, dict], one entry of a conditioning


@dataclass(frozen=True)
class ConvertReport:
    """What became of the source. `items` counts its latents as listed, `samples` the rows written: a batch is split."""

    source: Path
    destination: Path
    kind: str
    shards: int
    items: int
    samples: int
    notes: tuple[str, ...]

    def __str__(self) -> str:
        text = (
            f"Converted {self.samples:,} samples from {self.shards:,} shards ({self.kind}) to {self.destination.name}"
        )
        return "\n".join([text, *self.notes])


def convert(
    source: Path, destination: Path, *, progress: Callable[[int, int | None], None] | None = None
) -> ConvertReport:
    """Import the dataset in `source` into the cache `destination`, which is published only when all of it was read.

    `progress` is called with (items done, items in all or None) after each item. Nothing in the source is executed.
    """
    source, destination = Path(source), Path(destination)
    if source.resolve() == destination.resolve():
        raise CacheError(f"{source}: source and destination are one folder; name another destination")
    dataset = open_foreign(source)
    items = samples = 0
    with CacheWriter(destination, provenance=_describe(dataset)) as writer:
        for item in dataset.items():
            for latent, conditioning, name in _split(item, source):
                writer.add(latent=latent, conditioning=conditioning, source=name)
                samples += 1
            items += 1
            if progress is not None:
                progress(items, dataset.count)
        if not samples:
            raise CacheError(f"{source}: holds no samples; save the dataset again with ComfyUI's Save Training Dataset")
    return ConvertReport(source, destination, dataset.kind, len(dataset.shards), items, samples, dataset.notes)


def _describe(dataset: ForeignDataset) -> dict[str, Any]:
    return {"converted": {"format": dataset.kind, "folder": dataset.path.name, "shards": len(dataset.shards)}}


def _split(item: Item, source: Path) -> Iterator[tuple[dict, list[Entry], str]]:
    """The single samples of an item. A batch of one keeps its dict and all entries of its conditioning as they are."""
    place = f"{source / item.name}"
    rows = _count_rows(item.latent, place)
    _check_conditioning(item.conditioning, place)
    if rows == 1:
        yield item.latent, item.conditioning, item.name
        return
    for i in range(rows):
        yield (
            _latent_row(item.latent, i, rows),
            _conditioning_row(item.conditioning, i, rows, place),
            f"{item.name}.{i}",
        )


def _count_rows(latent: Any, place: str) -> int:
    samples = latent.get("samples") if isinstance(latent, dict) else None
    if not isinstance(samples, torch.Tensor):
        raise CacheError(f"{place}: the latent is no dict with a tensor 'samples'; save the dataset again in ComfyUI")
    if samples.ndim < 3 or samples.shape[0] == 0:
        raise CacheError(
            f"{place}: the latent's shape is {tuple(samples.shape)}, expected [batch, channels, …] with 1 or more"
        )
    return samples.shape[0]


def _check_conditioning(conditioning: Any, place: str) -> None:
    if not isinstance(conditioning, list) or not conditioning:
        raise CacheError(
            f"{place}: the conditioning is no list of [tensor, dict] entries; save the dataset again in ComfyUI"
        )
    for i, entry in enumerate(conditioning):
        fits = isinstance(entry, list | tuple) and len(entry) == 2
        if not fits or not isinstance(entry[0], torch.Tensor) or not isinstance(entry[1], dict):
            raise CacheError(
                f"{place}: entry {i} of the conditioning is not [tensor, dict]; save the dataset again in ComfyUI"
            )


def _latent_row(latent: dict, i: int, rows: int) -> dict:
    """Row i as a latent of its own. A mask with fewer rows repeats over the batch, as in the host."""
    row = dict(latent, samples=latent["samples"][i : i + 1])
    mask, numbers = latent.get("noise_mask"), latent.get("batch_index")
    if isinstance(mask, torch.Tensor) and mask.ndim > 0 and mask.shape[0] > 1:
        j = i % mask.shape[0]
        row["noise_mask"] = mask[j : j + 1]
    if isinstance(numbers, list) and len(numbers) == rows:
        row["batch_index"] = numbers[i : i + 1]
    return row


def _conditioning_row(conditioning: list[Entry], i: int, rows: int, place: str) -> list[Entry]:
    """What row i was captioned with: entry i of as many (Resolution Bucket makes those), or row i of one entry."""
    if len(conditioning) == rows:
        return [conditioning[i]]
    if len(conditioning) > 1:
        raise CacheError(
            f"{place}: {rows} latents with {len(conditioning)} conditioning entries, so none can be told apart; "
            "save the dataset again with one conditioning for each latent"
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
