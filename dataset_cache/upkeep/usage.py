"""Usage: what a dataset's folder takes on disk, part by part, and who reads or writes it now."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import CacheError
from ..format import MANIFEST, SHARDS, ShardFile
from ..read import holders, open_cache
from ..write import CheckedGeneration, current_publisher, existing_folder, leased_manifest, open_checked
from .contents import folder_contents, total_bytes


@dataclass(frozen=True)
class Usage:
    """Bytes by what they are for. `fields` and `unused` are of tensors, each counted once; the rest is of files."""

    published: str
    fields: dict[str, int]
    unused: int  # of what only unused entries refer to
    index: int
    shards: int
    older: int
    older_generations: int
    building: int
    debris: int
    missing: tuple[str, ...]  # shards that are gone or cut short
    readers: tuple[str, ...]
    writer: str | None


def usage(path: str | Path) -> Usage:
    """Look at a dataset's index and list its folder; tensors are not read."""
    folder = existing_folder(path)
    # Before our own lease: whoever only looks is no reader.
    readers, writer = tuple(str(holder) for holder in holders(folder)), current_publisher(folder)
    with leased_manifest(folder) as manifest:
        if manifest is None:
            open_cache(folder)  # refuses, with a word on how far a build came
            raise CacheError(f"{folder}: was published just now; look again")
        return usage_of(open_checked(folder, manifest), readers, writer)


def usage_of(current: CheckedGeneration, readers: tuple[str, ...], writer: str | None) -> Usage:
    """The usage of a generation that is open already."""
    manifest, sizes, owners = current.manifest, current.table.nbytes, _owners(current)
    found = folder_contents(current.folder, manifest, publishing=writer is not None)
    return Usage(
        published=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime((current.folder / MANIFEST).stat().st_mtime)),
        fields={name: int(sizes[owners == number].sum()) for number, name in enumerate(manifest.fields)},
        unused=int(sizes[owners < 0].sum()),
        index=manifest.index_bytes,
        shards=sum(shard.bytes for shard in manifest.shards),
        older=total_bytes(found.superseded),
        older_generations=len(found.old_indexes),
        building=total_bytes(found.building),
        debris=total_bytes(found.debris),
        missing=tuple(shard.file for shard in manifest.shards if not _is_whole(current.folder, shard)),
        readers=readers,
        writer=writer,
    )


def _is_whole(folder: Path, shard: ShardFile) -> bool:
    try:
        return (folder / SHARDS / shard.file).stat().st_size == shard.bytes
    except OSError:
        return False


def _owners(current: CheckedGeneration) -> np.ndarray:
    """For every blob, the field of a used entry that needs it; -1 if none does."""
    table = current.table
    owners = np.full(len(table), -1, np.int64)
    live = current.used[table.entry_of_ref]
    owners[table.row_of_ref[live]] = current.arrays.entries["field"][table.entry_of_ref[live]]
    return owners
