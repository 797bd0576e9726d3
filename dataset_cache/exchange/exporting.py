"""Exporting a cache in a format of other tools, from which it can be imported again without loss."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...errors import CacheError
from ...quantity import byte_count, plural
from ..address import Address, is_inside, local_folder
from ..format import Place
from ..read import Dataset, open_cache
from .about import ABOUT, write_about
from .huggingface import write_hub_folder
from .parquet import import_pyarrow, write_parquet
from .webdataset import write_shards

FILE_BYTES = 1 << 30  # after which a file is full: the next sample, or row group, begins another one
Progress = Callable[[int, int], None]


class _Write(Protocol):
    def __call__(self, dataset: Dataset, folder: Path, file_bytes: int, progress: Progress, /) -> list[str]: ...


FORMATS: dict[str, _Write] = {"webdataset": write_shards, "parquet": write_parquet, "hf": write_hub_folder}


@dataclass(frozen=True)
class ExportReport:
    """The result of an export in another format."""

    source: Path | Address
    destination: Path
    format: str
    samples: int
    files: int
    bytes: int

    def __str__(self) -> str:
        return (
            f"Wrote {plural(self.samples, 'sample')} in {plural(self.files, 'file')} ({byte_count(self.bytes)}, "
            f"{self.format}) to {self.destination.name}"
        )


def export_as(
    path: Place, destination: str | Path, form: str, progress: Progress | None = None, file_bytes: int = FILE_BYTES
) -> ExportReport:
    """Write the samples of a cache to the new folder `destination`: tar shards, parquet files or a folder for the Hub.

    One sample is in memory at a time, with parquet one row group. Every tensor is compared with its hash. `export.json`
    is written last: a folder without it is unfinished. `progress` is called with (samples done, total).
    """
    if form not in FORMATS:
        raise CacheError(f"format = {form!r}: expected one of {', '.join(FORMATS)}")
    if form != "webdataset":
        import_pyarrow()  # before anything is written
    destination = local_folder(destination)
    with open_cache(path) as cache:
        _make_new(destination, cache.path)
        files = FORMATS[form](cache, destination, file_bytes, progress or (lambda done, total: None))
        write_about(destination, cache, form, files)
        size = sum((destination / name).stat().st_size for name in files)
        return ExportReport(cache.path, destination, form, len(cache), len(files), size)


def _make_new(folder: Path, cache: Path | Address) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "an export" if (folder / ABOUT).exists() else "files"
        raise CacheError(f"{folder}: contains {what} already; choose a folder that is new or empty")
    if is_inside(folder, cache):
        raise CacheError(f"{folder}: is inside the cache itself; choose a folder outside it")
    folder.mkdir(parents=True, exist_ok=True)
