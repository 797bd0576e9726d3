"""Migration: a dataset of any format that can be opened is published again in the newest one, without encoding."""

from pathlib import Path

from .errors import CacheError
from .format import read_manifest
from .write import CacheWriter, existing_storage


def migrate(path: str | Path) -> bool:
    """Bring a dataset to the newest format. Entries and blobs stay as they are; a second time changes nothing.

    Returns whether anything changed.
    """
    folder = existing_storage(path).path
    before = read_manifest(folder)
    if before is None:
        raise CacheError(f"{folder}: nothing was published here, so there is nothing to migrate")
    with CacheWriter(folder, append=True):
        pass  # what can be read is published in the format of this version, whatever format it was in
    after = read_manifest(folder)
    return after is not None and after.generation != before.generation
