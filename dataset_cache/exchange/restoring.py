"""Importing: an export becomes the cache that it was; any other folder is asked for another trainer's cache."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import CacheError
from ...quantity import plural
from ..address import local_folder
from ..foreign import ConvertReport, ImportReport, convert, import_foreign, is_comfyui_dataset
from ..upkeep import require_new
from ..write import CacheWriter
from .about import ABOUT, About, is_export, read_about, read_named
from .parquet import read_parquet
from .record import Entry, Restored
from .webdataset import read_shards

READERS: dict[str, Callable[[Path, About], Iterator[Restored]]] = {
    "webdataset": read_shards,
    "parquet": read_parquet,
    "hf": read_parquet,
}
Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class RestoreReport:
    """The result of importing an export."""

    source: Path
    destination: Path
    kind: str
    samples: int

    def __str__(self) -> str:
        return f"Imported {plural(self.samples, 'sample')} ({self.kind}) to {self.destination.name}"


def import_cache(
    source: str | Path,
    destination: str | Path,
    images: str | Path | None = None,
    kind: str = "",
    progress: Progress | None = None,
) -> RestoreReport | ImportReport | ConvertReport:
    """Import an export of StreamCache, a cache of another trainer, or a dataset of ComfyUI's own nodes.

    `images` is the folder of the images and captions of another trainer, if it is not that of the cache; `kind` names
    the trainer if the folder has caches of several. Nothing in the source is executed or changed.
    """
    source, destination = local_folder(source), local_folder(destination)
    images = None if images is None else local_folder(images)
    if is_export(source):
        return restore_export(source, destination, progress)
    if not kind and is_comfyui_dataset(source):
        return convert(source, destination, progress=progress)
    return import_foreign(source, destination, images, kind, progress)


def restore_export(source: Path, destination: Path, progress: Progress | None = None) -> RestoreReport:
    """The cache that was exported to `source`: the same samples, entries and keys, published once all was read."""
    source, destination = Path(source), Path(destination)
    about = read_about(source)
    if about.format not in READERS:
        raise CacheError(f"{source / ABOUT}: format {about.format!r}, expected one of {', '.join(READERS)}")
    require_new(destination)
    count = 0
    with CacheWriter(destination, provenance=about.provenance, trim=about.trimmed) as writer:
        for name, facts in about.sets.items():
            writer.describe_set(name, facts)
        for sample in READERS[about.format](source, about):
            _store(writer, sample)
            count += 1
            if progress is not None:
                progress(count, about.samples)
        for name, entry in read_named(source, about).items():
            _put(writer, entry)
            writer.name(name, entry.key)
        if count != about.samples:
            expected = f"{source / ABOUT}: states {about.samples:,} samples"
            raise CacheError(f"{expected}, the files contain {count:,}; copy the export again")
    return RestoreReport(source, destination, about.format, count)


def _store(writer: CacheWriter, sample: Restored) -> None:
    for entries in sample.entries.values():
        for entry in entries:
            _put(writer, entry)
    writer.sample({name: [entry.key for entry in entries] for name, entries in sample.entries.items()}, sample.facts)


def _put(writer: CacheWriter, entry: Entry) -> None:
    writer.put_split(entry.key, entry.parts, entry.field, copied=False)
