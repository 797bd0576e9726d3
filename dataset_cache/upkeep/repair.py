"""Repair: publish a generation without the damaged entries, and without the samples that need them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import CacheError, CacheUnreadable, LossRefused
from ...quantity import plural
from ..address import Address
from ..format import ASIDE_FIELDS, DAMAGED, SHARDS, Place, StoredFile, remember_dropped
from ..index import blob_table, prune, variant_cells
from ..write import CheckedGeneration, open_exclusive, plan_rewrite, publish, write_packing
from .shard_state import UNREADABLE, Progress, examine_shards

SMALL_SHARE = 0.05  # of the samples, which a repair drops without being told to
_LISTED = 10


@dataclass(frozen=True)
class RepairReport:
    """What was dropped: samples with their source, the number of entries, and names of named entries."""

    path: Path | Address
    generation: str
    samples: tuple[tuple[int, str], ...]
    entries: int
    names: tuple[str, ...]
    shards: tuple[str, ...]  # files that were replaced or dropped

    def __str__(self) -> str:
        if not self.entries and not self.shards:
            return f"{self.path.name}: nothing to repair"
        return (
            f"Dropped {plural(len(self.samples), 'sample')} and {plural(self.entries, 'entry')} from {self.path.name}, "
            f"replaced {plural(len(self.shards), 'shard')}; encode again to restore them"
        )


def repair(
    path: Place, progress: Progress | None = None, accept_loss: bool = False, most: int | None = None
) -> RepairReport:
    """Publish a generation without the damaged entries and the samples that need them. Intact data is kept.

    A sample that lost only its thumbnail is kept. The keys of dropped entries are remembered as damaged. The files of
    the damaged generation remain until they are cleaned as superseded. Refused, and nothing is changed, if the manifest
    or index is damaged (nothing else says what belongs together), if shards were swapped (renaming them loses nothing),
    if a file cannot be read now, without `accept_loss` if more than 5% of the samples would be dropped, and always if
    more than `most` would be.
    """
    with open_exclusive(path) as current:
        damaged, bad = _examine_all(current, progress)
        if not damaged.any() and not bad:
            return RepairReport(current.folder, current.manifest.generation, (), 0, (), ())
        lost = _lost_samples(current, damaged)
        if most is not None and lost.sum() > most:
            raise CacheError(
                f"{current.folder}: repair would drop {plural(int(lost.sum()), 'sample')}, not at most {most:,}. "
                "Nothing was changed; verify it again"
            )
        if not accept_loss:
            _refuse_loss(current, lost)
        return _publish_rest(current, damaged, lost, bad)


def _examine_all(current: CheckedGeneration, progress: Progress | None) -> tuple[np.ndarray, list[int]]:
    """A mask of the entries that need a damaged blob, and the shards with a problem."""
    damaged, bad = np.zeros(current.index.entry_count, bool), list[int]()
    for number, state in enumerate(examine_shards(current, progress)):
        shard = current.manifest.shards[number]
        if len(state.damaged):
            damaged |= state.entries(len(damaged))
        if state.problem is not None:
            bad.append(number)
        if state.kind == UNREADABLE:
            raise CacheUnreadable(f"{state.problem}. Nothing was changed")
        if state.swapped_with is not None:
            raise CacheError(f"{current.folder / SHARDS / shard.file}: {state.problem}, then nothing is lost")
    return damaged, bad


def _refuse_loss(current: CheckedGeneration, lost: np.ndarray) -> None:
    if lost.sum() > SMALL_SHARE * len(lost):
        samples = _named_samples(current, lost)
        listed = ", ".join(source for _, source in samples[:_LISTED])
        more = f" and {len(samples) - _LISTED:,} more" if len(samples) > _LISTED else ""
        raise LossRefused(
            f"{current.folder}: repair would drop {len(samples):,} of {plural(len(lost), 'sample')}: {listed}{more}. "
            'Nothing was changed; restore the damaged shards from a copy, encode again with "check", or accept the '
            "loss (--yes)",
            samples,
        )


def _named_samples(current: CheckedGeneration, mask: np.ndarray) -> tuple[tuple[int, str], ...]:
    sources = current.arrays.samples["source"]
    return tuple((n, current.index.string(int(sources[n]))) for n in np.flatnonzero(mask).tolist())


def _publish_rest(
    current: CheckedGeneration, damaged: np.ndarray, lost: np.ndarray, bad: Sequence[int]
) -> RepairReport:
    manifest = current.manifest
    keys = {current.index.key_of(entry) for entry in np.flatnonzero(damaged).tolist()}
    named = {name: key for name, key in manifest.named.items() if bytes.fromhex(key) not in keys}
    arrays = prune(current.arrays, len(manifest.fields), ~lost, ~damaged)
    open_shard = _open_unchecked(current)
    rewrite = plan_rewrite(arrays, blob_table(arrays), manifest.shards, bad, manifest.next_shard, open_shard)
    write_packing(current.storage, rewrite.packing, open_shard)
    extra = remember_dropped(manifest.extra, sorted(keys), DAMAGED)
    draft = current.successor(rewrite.arrays, rewrite.shards, rewrite.next_shard, named, extra=extra)
    published = publish(current.storage, rewrite.arrays, draft)
    samples = _named_samples(current, lost)
    names = tuple(name for name in manifest.named if name not in named)
    shards = tuple(manifest.shards[n].file for n in bad)
    return RepairReport(current.folder, published.generation, samples, len(keys), names, shards)


def _open_unchecked(current: CheckedGeneration) -> Callable[[int], StoredFile]:
    """Opens shards without a check of their header: every blob that is read was compared with its hash before."""
    opened: dict[int, StoredFile] = {}

    def open_shard(number: int) -> StoredFile:
        if number not in opened:
            opened.clear()
            opened[number] = current.storage.open(f"{SHARDS}/{current.manifest.shards[number].file}")
        return opened[number]

    return open_shard


def _lost_samples(current: CheckedGeneration, damaged: np.ndarray) -> np.ndarray:
    """A mask of the samples that need a damaged entry for training. A lost thumbnail does not count."""
    fields = current.manifest.fields
    cells, flat = variant_cells(current.arrays, len(fields))
    needed = np.array([name not in ASIDE_FIELDS for name in fields], bool)
    lost = np.zeros(len(current.arrays.samples), bool)
    if len(cells):
        hit = cells[damaged[flat] & needed[cells % len(fields)]]
        lost[hit // len(fields)] = True
    return lost
