"""Publishing: one step in which a new generation takes the place of the old, and the removal of what is left behind."""

import os
import re
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path

from ..errors import CacheError
from ..format import (
    SHARD_NAME,
    SHARDS,
    IndexArrays,
    Manifest,
    derive,
    is_link,
    move_file,
    read_manifest,
    remove_file,
    sync_folder,
    write_index,
    write_manifest,
)
from ..read import holders

_INDEX_NAME = re.compile(r"index-([0-9a-f]{32})\.safetensors")


def publish(folder: Path, arrays: IndexArrays, draft: Manifest) -> Manifest:
    """Write the index, then the manifest, of which `draft` lacks only the index's size and hash. Durable on return.

    Nothing older is removed: `remove_superseded` does that, when nobody here holds the last generation open any more.
    """
    temporary = folder / f".index.{os.getpid()}.tmp"
    try:
        size, digest = write_index(temporary, derive(arrays, len(draft.fields)))
        manifest = replace(draft, index_bytes=size, index_hash=digest)
        current = read_manifest(folder)
        if current is not None and current.generation == manifest.generation:
            return current
        move_file(temporary, folder / manifest.index_name)
        sync_folder(folder)
        write_manifest(folder, manifest)
    except OSError as error:
        raise CacheError(
            f"{folder}: cannot be published: {error.strerror or error}; the last generation stays"
        ) from error
    finally:
        remove_file(temporary)
    return manifest


def remove_superseded(folder: Path, manifest: Manifest, keep: Container[str] = ()) -> None:
    """Remove what no generation in use needs any more; what is in use, or held open on Windows, goes next time.

    `keep` names shards that stay all the same, because an unfinished build refers to them.
    """
    for path in superseded(folder, manifest):
        if path.name not in keep:
            remove_file(path)


def superseded(folder: Path, manifest: Manifest) -> Iterator[Path]:
    """Indexes and shards that the current generation does not list and nobody's lease protects."""
    leased = {holder.generation for holder in holders(folder)}
    for path in folder.glob("index-*"):
        if index_generation(path) not in (None, manifest.generation, *leased):
            yield path
    # Which shards an older generation reads is known only to its readers: while there are any, all are kept.
    if leased <= {manifest.generation}:
        listed = {shard.file for shard in manifest.shards}
        yield from (path for path in shards_inside(folder) if path.name not in listed)


def shards_inside(folder: Path) -> list[Path]:
    """The files in a dataset that are shards by their name. Behind a link stands what may belong to somebody else."""
    shards = folder / SHARDS
    inside = sorted(shards.iterdir()) if shards.is_dir() and not is_link(shards) else []
    return [path for path in inside if SHARD_NAME.fullmatch(path.name)]


def index_generation(path: Path) -> str | None:
    """The generation whose index this file is, by its name."""
    match = _INDEX_NAME.fullmatch(path.name)
    return match[1] if match else None
