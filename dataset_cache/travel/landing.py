"""How files arrive. In a folder they grow below `.travel/incoming`, and a later run continues where one was killed; an
object store takes them whole, under their names: nothing refers to them before the manifest does.
"""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, NamedTuple, Protocol

from ...errors import CacheBusy
from ..format import MANIFEST, SHARDS, Lock, Manifest, Place, Storage, read_manifest, storage_at
from ..stored_file import GrowingFile
from ..upkeep import INCOMING, TRAVEL, TRAVEL_LOCK
from .cargo import Cargo, cargo_of

_READ_BYTES = 4 << 20


class Arriving(Protocol):
    """A file that arrives from front to back. `size` is what an earlier run has left of it."""

    size: int

    def kept(self) -> Iterator[memoryview]:
        """What is here already."""
        ...

    def write(self, data: bytes | bytearray) -> None: ...


class Landing(Protocol):
    """The place in a storage where files arrive."""

    def receive(self, cargo: Cargo, fresh: bool) -> AbstractContextManager[Arriving]:
        """One file, complete when the `with` ends without an error. `fresh`: without what an earlier run has left."""
        ...

    def arrived(self, cargo: Cargo) -> int:
        """The bytes of a file that an earlier run has left here."""
        ...

    def expect(self, manifest: Manifest) -> None:
        """Say which generation is to arrive, so that an unfinished one can be told from a cache."""
        ...

    def settle(self, cargoes: list[Cargo]) -> None:
        """Put the files that have arrived under their names."""
        ...

    def discard(self) -> None:
        """Remove what is left of other generations, once one is complete."""
        ...

    def close(self) -> None: ...


class Unfinished(NamedTuple):
    """A generation that has arrived in part."""

    manifest: Manifest
    arrived: int  # bytes
    total: int


def unfinished_in(place: Place) -> Unfinished | None:
    """What an interrupted pull, or one that still runs, has brought to a folder so far."""
    storage = storage_at(place)
    manifest = None if storage.is_remote else read_manifest(storage.path / INCOMING)
    if manifest is None:
        return None
    here, coming = storage.sizes() | storage.sizes(SHARDS), storage.sizes(INCOMING)
    names = {each.name.rpartition("/")[2]: each.bytes for each in cargo_of(manifest)}
    arrived = sum(min(max(here.get(name, 0), coming.get(name, 0)), size) for name, size in names.items())
    return Unfinished(manifest, arrived, sum(names.values()))


def landing_in(storage: Storage) -> Landing:
    return ObjectLanding(storage) if storage.is_remote else FolderLanding(storage)


class FolderLanding:
    """One process at a time receives files in a folder; writers and readers of the cache go on meanwhile."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock: Lock | None = None
        for name in (TRAVEL, INCOMING, SHARDS):
            storage.refuse_link(name)
        storage.make_folder()
        storage.make_folder(INCOMING)
        try:
            self._lock = storage.lock(TRAVEL_LOCK)
        except TimeoutError:
            message = f"{storage.path}: another push, pull or sync is writing to it; wait until it has finished"
            raise CacheBusy(message) from None

    @contextlib.contextmanager
    def receive(self, cargo: Cargo, fresh: bool) -> Iterator[Arriving]:
        name = _part(cargo)
        found = self._storage.stat(name)
        file = self._storage.edit(name, new=found is None)
        try:
            size = 0 if fresh or found is None or found.size > cargo.bytes else found.size
            file.truncate(size)
            yield _Growing(file, size)
            file.sync()
        finally:
            file.close()

    def arrived(self, cargo: Cargo) -> int:
        found = self._storage.stat(_part(cargo))
        return 0 if found is None or found.kind != "file" or found.size > cargo.bytes else found.size

    def expect(self, manifest: Manifest) -> None:
        self._storage.replace(f"{INCOMING}/{MANIFEST}", manifest.to_json())

    def settle(self, cargoes: list[Cargo]) -> None:
        self._storage.make_folder(SHARDS)
        for cargo in cargoes:
            self._storage.move(_part(cargo), cargo.name)
        self._storage.sync(SHARDS)
        self._storage.sync()

    def discard(self) -> None:
        self._storage.remove_folder(INCOMING, content=True)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class _Growing:
    def __init__(self, file: GrowingFile, size: int) -> None:
        self._file, self.size, self._end = file, size, size

    def kept(self) -> Iterator[memoryview]:
        for at in range(0, self.size, _READ_BYTES):
            yield memoryview(self._file.read(at, min(_READ_BYTES, self.size - at)))

    def write(self, data: bytes | bytearray) -> None:
        self._file.write(self._end, memoryview(data))
        self._file.start_writing(self._end, len(data))
        self._end += len(data)


class ObjectLanding:
    """Two publishers may upload at once: equal names have equal contents, and one of them publishes its manifest."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @contextlib.contextmanager
    def receive(self, cargo: Cargo, fresh: bool) -> Iterator[Arriving]:
        with self._storage.create(cargo.name) as file:
            yield _Uploading(file)

    def arrived(self, cargo: Cargo) -> int:
        return 0

    def expect(self, manifest: Manifest) -> None:
        pass

    def settle(self, cargoes: list[Cargo]) -> None:
        pass

    def discard(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Uploading:
    size = 0

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def kept(self) -> Iterator[memoryview]:
        return iter(())

    def write(self, data: bytes | bytearray) -> None:
        self._file.write(data)


def _part(cargo: Cargo) -> str:
    return f"{INCOMING}/{cargo.name.rpartition('/')[2]}"
