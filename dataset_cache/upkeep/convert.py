"""Conversion: a training dataset that ComfyUI's own nodes wrote becomes a cache, with one shard in memory at most."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CacheError
from ..write import CacheWriter, split_rows
from .foreign import ForeignDataset, open_foreign

REMEDY = "save the dataset again in ComfyUI"


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
            place = str(source / item.name)
            for latent, conditioning, row in split_rows(item.latent, item.conditioning, place, REMEDY):
                writer.add(latent=latent, conditioning=conditioning, source=f"{item.name}{row}")
                samples += 1
            items += 1
            if progress is not None:
                progress(items, dataset.count)
        if not samples:
            raise CacheError(f"{source}: holds no samples; save the dataset again with ComfyUI's Save Training Dataset")
    return ConvertReport(source, destination, dataset.kind, len(dataset.shards), items, samples, dataset.notes)


def _describe(dataset: ForeignDataset) -> dict[str, Any]:
    return {"converted": {"format": dataset.kind, "folder": dataset.path.name, "shards": len(dataset.shards)}}
