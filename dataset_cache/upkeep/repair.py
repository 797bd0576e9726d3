"""Repair: a new generation without what is damaged. What is well is kept, also in a file whose header is not."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import CacheError
from ..format import ASIDE_FIELDS, DAMAGED, SHARDS, OpenFile, blob_table, prune, remember_dropped, variant_cells
from ..write import CheckedGeneration, open_exclusive, plan_rewrite, publish, write_packing
from .health import Health, Progress, examine


@dataclass(frozen=True)
class RepairReport:
    """What was dropped: samples with their source, the number of entries, and names of entries in the dataset."""

    path: Path
    generation: str
    samples: tuple[tuple[int, str], ...]
    entries: int
    names: tuple[str, ...]
    shards: tuple[str, ...]  # files that were replaced or given up

    def __str__(self) -> str:
        if not self.entries and not self.shards:
            return f"{self.path.name} needs no repair"
        return (
            f"Dropped {len(self.samples):,} samples and {self.entries:,} entries from {self.path.name}, "
            f"{len(self.shards):,} shards replaced; encode again to rebuild them"
        )


def repair(path: str | Path, progress: Progress | None = None) -> RepairReport:
    """Publish a generation without the damaged entries, and without the samples that need one of them.

    A sample that only lost its thumbnail stays. The keys of dropped entries are remembered as damaged. The files of
    the damaged generation stay until they are cleaned as superseded. Refused where the manifest or index is damaged
    (they say what belongs together), and where files were swapped: renaming them loses nothing.
    """
    with open_exclusive(path) as current:
        healths = _examine_all(current, progress)
        rows = np.concatenate([np.empty(0, np.int64), *(health.damaged for health in healths)])
        bad = [n for n, health in enumerate(healths) if health.wrong is not None]
        if not len(rows) and not bad:
            return RepairReport(current.folder, current.manifest.generation, (), 0, (), ())
        return _publish_rest(current, current.table.entries_using(rows, len(current.arrays.entries)), bad)


def _examine_all(current: CheckedGeneration, progress: Progress | None) -> list[Health]:
    shards = current.manifest.shards
    healths = list(examine(current.folder, shards, current.table, progress))
    for shard, health in zip(shards, healths, strict=True):
        if health.swapped_with is not None:
            raise CacheError(f"{current.folder / SHARDS / shard.file}: {health.wrong}; then nothing is lost")
    return healths


def _publish_rest(current: CheckedGeneration, damaged: np.ndarray, bad: list[int]) -> RepairReport:
    manifest = current.manifest
    lost = _lost_samples(current, damaged)
    keys = {current.index.key_of(entry) for entry in np.flatnonzero(damaged).tolist()}
    named = {name: key for name, key in manifest.named.items() if bytes.fromhex(key) not in keys}
    arrays = prune(current.arrays, len(manifest.fields), ~lost, ~damaged)
    open_shard = _unchecked(current)
    rewrite = plan_rewrite(arrays, blob_table(arrays), manifest.shards, bad, manifest.next_shard, open_shard)
    write_packing(current.folder, rewrite.packing, open_shard)
    extra = remember_dropped(manifest.extra, sorted(keys), DAMAGED)
    draft = current.successor(rewrite.arrays, rewrite.shards, rewrite.next_shard, named, extra=extra)
    published = publish(current.folder, rewrite.arrays, draft)
    sources = current.arrays.samples["source"]
    samples = tuple((n, current.index.string(int(sources[n]))) for n in np.flatnonzero(lost).tolist())
    names = tuple(name for name in manifest.named if name not in named)
    shards = tuple(manifest.shards[n].file for n in bad)
    return RepairReport(current.folder, published.generation, samples, len(keys), names, shards)


def _unchecked(current: CheckedGeneration) -> Callable[[int], OpenFile]:
    """Opens shards whose header may be wrong: each blob that is read was compared with its hash before."""
    opened: dict[int, OpenFile] = {}

    def open_shard(number: int) -> OpenFile:
        if number not in opened:
            opened.clear()
            opened[number] = OpenFile(current.folder / SHARDS / current.manifest.shards[number].file)
        return opened[number]

    return open_shard


def _lost_samples(current: CheckedGeneration, damaged: np.ndarray) -> np.ndarray:
    """A mask of the samples that need a damaged entry for more than looking at it."""
    fields = current.manifest.fields
    cells, flat = variant_cells(current.arrays, len(fields))
    needed = np.array([name not in ASIDE_FIELDS for name in fields], bool)
    lost = np.zeros(len(current.arrays.samples), bool)
    if len(cells):
        hit = cells[damaged[flat] & needed[cells % len(fields)]]
        lost[hit // len(fields)] = True
    return lost
