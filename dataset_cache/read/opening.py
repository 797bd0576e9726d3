"""Opens the published generation of a cache from its metadata alone, or reports why there is none."""

from ...errors import CacheError
from ...quantity import byte_count, plural
from ..format import BUILD, Place, Storage, manifest_stamp, read_manifest, recover, segments, storage_at
from ..index import open_index
from .cache import Cache
from .leases import Lease
from .lost_manifest import find_lost

_ATTEMPTS = 10


def open_cache(path: Place, check: bool = False) -> Cache:
    """Open the published generation of a dataset. Only metadata is read.

    `check` compares everything that is read with its checksum.
    """
    storage = storage_at(path)
    for _ in range(_ATTEMPTS):
        stamp = manifest_stamp(storage)
        manifest = read_manifest(storage)
        if manifest is None:
            raise _unpublished(storage)
        lease = Lease(storage, manifest.generation)
        try:
            cache = Cache(storage, manifest, open_index(storage, manifest, check or None), lease, check)
        except CacheError:
            lease.release()
            if manifest_stamp(storage) == stamp:
                raise
            continue
        # Check again with the lease in place: a writer that published before it may be about to remove these files.
        if manifest_stamp(storage) == stamp:
            return cache
        lease.release()
    raise CacheError(f"{storage.path}: was published {_ATTEMPTS} times while it was being opened; open it again")


def _unpublished(storage: Storage) -> CacheError:
    """The error for a folder without a manifest: how far a build came, or that this is not a cache."""
    if not storage.exists():
        return CacheError(f"{storage.path}: no such cache")
    if (lost := find_lost(storage)) is not None:
        return CacheError(f"{storage.path}: {lost}")
    if storage.stat(BUILD) is not None:
        ready = [recover(storage, folder) for folder in segments(storage)]
        entries, nbytes = sum(len(r.entries) for r in ready), sum(r.nbytes for r in ready)
        return CacheError(
            f"{storage.path}: was never published; {plural(entries, 'entry')} ({byte_count(nbytes)}) of its build "
            f"{'is' if entries == 1 else 'are'} ready; run the same save again to finish it"
        )
    return CacheError(f"{storage.path}: has no dataset.json, so it is not a StreamCache dataset or was never finished")
