"""Converts training datasets written by ComfyUI's own nodes to a cache, without running anything they contain."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import CacheError
from ...quantity import plural
from ..address import local_folder
from ..format import storage_at
from ..upkeep import refuse_other_origin
from ..write import CacheWriter, split_rows
from .comfy_dataset import ForeignDataset, open_foreign

_REMEDY = "save the dataset again in ComfyUI"


@dataclass(frozen=True)
class ConvertReport:
    """The result of a conversion. `items` are latents as listed, `samples` the rows written: batches are split."""

    source: Path
    destination: Path
    kind: str
    shards: int
    items: int
    samples: int
    notes: tuple[str, ...]

    def __str__(self) -> str:
        counts = f"{plural(self.samples, 'sample')} from {plural(self.shards, 'shard')} ({self.kind})"
        text = f"Converted {counts} to {self.destination.name}"
        return "\n".join([text, *self.notes])


def convert(
    source: str | Path, destination: str | Path, *, progress: Callable[[int, int | None], None] | None = None
) -> ConvertReport:
    """Import the dataset in `source` into the cache `destination`, published once all of it has been read.

    An existing cache is replaced only if it was converted too.
    `progress` is called with (items done, total or None) after each item. Nothing in the source is executed.
    """
    source, destination = local_folder(source), local_folder(destination)
    if source.resolve() == destination.resolve():
        raise CacheError(f"{source}: source and destination are the same folder; choose another destination")
    dataset = open_foreign(source)
    items, samples, provenance = 0, 0, _describe(dataset)
    refuse_other_origin(storage_at(destination), provenance)
    with CacheWriter(destination, provenance=provenance) as writer:
        for item in dataset.items():
            place = str(source / item.name)
            for latent, conditioning, row in split_rows(item.latent, item.conditioning, place, _REMEDY):
                writer.add(latent=latent, conditioning=conditioning, source=f"{item.name}{row}")
                samples += 1
            items += 1
            if progress is not None:
                progress(items, dataset.count)
        if not samples:
            raise CacheError(
                f"{source}: contains no samples; save the dataset again with ComfyUI's Save Training Dataset"
            )
    return ConvertReport(source, destination, dataset.kind, len(dataset.shards), items, samples, dataset.notes)


def _describe(dataset: ForeignDataset) -> dict[str, Any]:
    return {"converted": {"format": dataset.kind, "folder": dataset.path.name, "shards": len(dataset.shards)}}
