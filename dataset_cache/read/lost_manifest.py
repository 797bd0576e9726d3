"""A published cache whose manifest is lost. Its index and shards may be all that is left, so they are not leftovers."""

import numpy as np

from ...errors import CacheError, CacheUnreadable
from ...quantity import byte_count, plural
from ..format import MANIFEST, SHARDS, Storage, index_generation, read_header, recover, segments
from ..index import ENTRY

_MAX_HEADER = 1 << 20


def find_lost(storage: Storage) -> str | None:
    """What there is of a published cache without a manifest, with the remedy; None if nothing was lost.

    A writer that was killed while it published for the first time leaves an index without a manifest too. Then its
    unfinished build has all entries of the index, and the next writer publishes them.
    """
    if storage.stat(MANIFEST) is not None:
        return None
    indexes = [name for name in storage.list() if index_generation(name)]
    if not indexes:
        return None
    ready = {entry.key for folder in segments(storage) for entry in recover(storage, folder).entries}
    if all(_has_only(storage, name, ready) for name in indexes):
        return None
    shards = [status for file in storage.list(SHARDS) if (status := storage.stat(f"{SHARDS}/{file}")) is not None]
    size = byte_count(sum(status.size for status in shards))
    found = f"{MANIFEST} is missing, but {indexes[0]} and {plural(len(shards), 'shard')} ({size}) of a"
    if storage.is_remote:  # a push that failed or still runs leaves this too
        return f"{found} dataset are here; push it again from the folder of the cache, which sends only what is missing"
    return (
        f"{found} published dataset are here; restore {MANIFEST} from a copy of the folder, or move the folder away "
        "and save again"
    )


def refuse_lost(storage: Storage) -> None:
    """Refuse to start a new cache among the files of one whose manifest is lost: they would be removed."""
    lost = find_lost(storage)
    if lost is not None:
        raise CacheError(f"{storage.path}: {lost}. Nothing was changed")


def _has_only(storage: Storage, name: str, keys: set[bytes]) -> bool:
    """Whether all entries of an index are among these; False if it is damaged."""
    try:
        file = storage.open(name)
        header, start = read_header(file, _MAX_HEADER)
        first, end = header["entries"]["data_offsets"]
        rows = np.frombuffer(bytes(file.read(start + first, end - first)), ENTRY)
    except CacheUnreadable:
        raise
    except (CacheError, KeyError, ValueError):
        return False
    return all(key.tobytes() in keys for key in rows["key"])
