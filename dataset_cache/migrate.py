"""Migration: publish a dataset of an older format again in the newest one, without encoding."""

from pathlib import Path

from ..errors import CacheError
from .format import read_manifest
from .write import CacheWriter, existing_storage


def migrate(path: str | Path) -> bool:
    """Convert a dataset to the newest format and return whether anything changed. Entries and blobs stay the same."""
    folder = existing_storage(path).path
    before = read_manifest(folder)
    if before is None:
        raise CacheError(f"{folder}: nothing has been published here, so there is nothing to migrate")
    with CacheWriter(folder, append=True):
        pass  # publishing always writes the format of this version
    after = read_manifest(folder)
    return after is not None and after.generation != before.generation
