"""Verification: reads a whole dataset once and names what is damaged, what is missing, and what nobody needs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..errors import CacheError
from ..format import MANIFEST, SHARDS, Manifest, read_manifest, variant_cells
from ..write import CheckedGeneration, current_publisher, existing_folder, leased_manifest, open_checked
from .contents import folder_contents
from .health import Health, Progress, examine

DAMAGED, MISSING, STRAY = "damaged", "missing", "debris"


@dataclass(frozen=True)
class Problem:
    """Something that is not as it should be. `sample` and `source` say who suffers, where that is known."""

    kind: str
    place: str  # a file, relative to the dataset
    what: str
    sample: int | None = None
    source: str | None = None

    def __str__(self) -> str:
        who = "" if self.sample is None else f"sample {self.sample} ({self.source}): "
        return f"{self.kind}: {self.place}: {who}{self.what}"


def verify(path: str | Path, progress: Progress | None = None) -> Iterator[Problem]:
    """Check everything that the published generation consists of, and look for debris. Nothing is changed.

    Every blob that an entry refers to is compared with its hash, in the order of the files. `progress` is called with
    (bytes done, bytes in all). A dataset in use can be verified; it is not removed meanwhile.
    """
    folder = existing_folder(path)
    try:
        read_manifest(folder)
    except CacheError as error:
        yield Problem(DAMAGED, MANIFEST, str(error))
        return  # without it, nothing can be said of the other files
    with leased_manifest(folder) as manifest:
        if manifest is None:
            yield Problem(MISSING, MANIFEST, "nothing was published here; run the save again to finish it")
        else:
            yield from _check_generation(folder, manifest, progress)
    yield from _find_debris(folder)


def _check_generation(folder: Path, manifest: Manifest, progress: Progress | None) -> Iterator[Problem]:
    try:
        current = open_checked(folder, manifest)
    except CacheError as error:
        kind = DAMAGED if (folder / manifest.index_name).exists() else MISSING
        yield Problem(kind, manifest.index_name, str(error))
        return
    for number, health in enumerate(examine(folder, manifest.shards, current.table, progress)):
        yield from _problems(current, number, health)


def _problems(current: CheckedGeneration, number: int, health: Health) -> Iterator[Problem]:
    place = f"{SHARDS}/{current.manifest.shards[number].file}"
    kind = MISSING if health.missing else DAMAGED
    if health.wrong is not None:
        yield Problem(kind, place, health.wrong)
    if len(health.damaged):
        what = "is lost with the file" if health.missing else "its stored bytes are damaged"
        for problem in _suffering(current, health.damaged):
            yield replace(problem, kind=kind, place=place, what=f"{problem.what} {what}")


def _suffering(current: CheckedGeneration, rows: np.ndarray) -> Iterator[Problem]:
    """The samples, names and unused entries that need one of these blobs."""
    hit = current.table.entries_using(rows, len(current.arrays.entries))
    fields = current.manifest.fields
    cells, flat = variant_cells(current.arrays, len(fields))
    for cell in np.unique(cells[hit[flat]]).tolist():
        sample, field = divmod(cell, len(fields))
        source = current.index.string(int(current.arrays.samples["source"][sample]))
        yield Problem(DAMAGED, "", f"{fields[field]}:", sample, source)
    for name, key in current.manifest.named.items():
        if hit[current.index.find_entry(bytes.fromhex(key))]:
            yield Problem(DAMAGED, "", f"the entry named {name!r}:")
    for entry in np.flatnonzero(hit & ~current.used).tolist():
        field = fields[int(current.arrays.entries["field"][entry])]
        yield Problem(DAMAGED, "", f"an unused entry ({field}, key {current.index.key_of(entry).hex()}):")


def _find_debris(folder: Path) -> Iterator[Problem]:
    try:
        manifest = read_manifest(folder)
    except CacheError:
        return
    found = folder_contents(folder, manifest, publishing=current_publisher(folder) is not None)
    for path in found.debris:
        yield Problem(STRAY, path.relative_to(folder).as_posix(), f"{path.lstat().st_size:,} bytes that nothing needs")
