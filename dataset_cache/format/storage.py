"""Storage: the one door to the files of a dataset. Another kind of storage is another class here.

A name is relative to the cache's folder, with `/` between its parts: `shards/s-00000-….safetensors`. Calls that write
raise OSError if the system refuses; the caller's CacheError explains what that means for the cache.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from ...errors import CacheError
from ..address import Address, is_address, local_folder
from ..stored_file import GrowingFile, StoredFile, stream
from .files import (
    OpenFile,
    WritableFile,
    create_file,
    error_kind,
    is_link,
    is_link_status,
    link_or_copy,
    move_file,
    refuse_link,
    remove_file,
    replace_file,
    sync_folder,
)
from .locks import Lock, is_locked, move_locked_folder, take_lock

Stamp = tuple[int | str, ...]


class Status(NamedTuple):
    """What a name stands for. `stamp` changes if the file is replaced or written to."""

    kind: str  # "file", "folder", "link" or "other"
    size: int
    modified: float
    stamp: Stamp


class Storage(Protocol):
    """The folder of one dataset."""

    @property
    def path(self) -> Path | Address:
        """The place as users name it, for messages and reports."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether files can only be replaced as a whole, and readers and writers leave neither leases nor locks."""
        ...

    def exists(self) -> bool:
        """Whether the folder itself is there."""
        ...

    def stat(self, name: str) -> Status | None:
        """What a name stands for, without following links; None if it is missing."""
        ...

    def list(self, folder: str = "") -> list[str]:
        """The sorted names in a folder; empty if it is missing or a link. Raises a CacheError if it is unreadable."""
        ...

    def sizes(self, folder: str = "") -> dict[str, int]:
        """The files in a folder with their sizes, in as few requests as possible."""
        ...

    def refuse_link(self, name: str) -> None:
        """Raise a CacheError if a name leads out of the cache."""
        ...

    def open(self, name: str) -> StoredFile:
        """Open a file for reading. Raises a CacheError if it is missing or not a file."""
        ...

    def open_to_map(self, name: str, dataset: str, nbytes: int, digest: str) -> StoredFile:
        """Open an immutable file of a dataset to map it. At an address, this is a local copy with this xxh3-128."""
        ...

    def at_once(self, calls: Sequence[Callable[[], object]]) -> None:
        """Make these calls, which read from this storage; at an address, several at once."""
        ...

    def create(self, name: str, durable: bool = True) -> AbstractContextManager[BinaryIO]:
        """A new file in the place of what has the name, complete when the `with` ends."""
        ...

    def edit(self, name: str, new: bool = False) -> GrowingFile:
        """Open an existing file, or a `new` one under a free name, for writes at any position."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Put `data` under a name in one durable step: readers see the old file or the new one, never a part."""
        ...

    def replace_if(self, name: str, data: bytes, expected: Stamp | None) -> bool:
        """Do so only if what has the name still has this stamp, or with None if nothing has it.

        False if another writer was first. On a disk, the caller holds the publish lock.
        """
        ...

    def touch(self, name: str, time: float | None = None) -> None:
        """Set a file's time to now, by the clock of the storage, and create it if it is missing.

        With `time`, set it to this time; a missing file is not created.
        """
        ...

    def move(self, name: str, to: str) -> None: ...

    def link_or_copy(self, name: str, target: "Storage", to: str) -> bool:
        """Give an immutable file to another dataset. True if both share it and it takes no more space."""
        ...

    def remove(self, name: str) -> bool:
        """Remove a file if it exists. False if that fails; a later run removes it."""
        ...

    def make_folder(self, name: str = "", new: bool = False) -> None:
        """Make a folder inside an existing cache, or the cache's own. Refuses with `new` if it exists."""
        ...

    def relocate(self, target: Path, lock: Lock) -> "Storage":
        """Move the folder of the cache, which contains this lock, to a free place on its drive; the storage there."""
        ...

    def remove_folder(self, name: str, content: bool = False) -> None:
        """Remove a folder if it is empty, or with its `content`. What cannot be removed stays."""
        ...

    def sync(self, folder: str = "") -> None:
        """Make new names in a folder durable."""
        ...

    def lock(self, name: str, patience: float = 0.0) -> Lock:
        """Take a lock, waiting for `patience` seconds. Raises TimeoutError if another process holds it."""
        ...

    def is_locked(self, name: str) -> bool:
        """Whether a process holds this lock. Creates no file. Raises OSError if that cannot be found out."""
        ...


Place = str | Path | Address | Storage
# How to reach addresses, by scheme. The room `remote` fills it, because its storages are built on this one.
SCHEMES: dict[str, Callable[[str], Storage]] = {}


def storage_at(place: Place) -> Storage:
    """The storage of a dataset that a user named. Every function that takes a place goes through this."""
    if not isinstance(place, str | Path | Address):
        return place
    if not is_address(place):
        return LocalStorage(local_folder(place))
    address = place if isinstance(place, Address) else Address.parse(str(place))
    if address.scheme not in SCHEMES:
        raise CacheError(f"{address}: no such kind of address; expected {', '.join(f'{s}://' for s in SCHEMES)}")
    return SCHEMES[address.scheme](str(address))


@dataclass(frozen=True)
class LocalStorage:
    """A folder on a disk of this machine, or on a network drive."""

    path: Path
    is_remote = False

    def exists(self) -> bool:
        return self.path.is_dir()

    def stat(self, name: str) -> Status | None:
        try:
            found = os.lstat(self.path / name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
            raise error_kind(error)(f"{self.path / name}: cannot be read: {error}") from error
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        return Status(_kind(found), found.st_size, found.st_mtime, stamp)

    def list(self, folder: str = "") -> list[str]:
        path = self.path / folder
        try:
            return [] if folder and is_link(path) else sorted(os.listdir(path))
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
            raise error_kind(error)(f"{path}: cannot be listed: {error}") from error

    def sizes(self, folder: str = "") -> dict[str, int]:
        found = {name: self.stat(f"{folder}/{name}" if folder else name) for name in self.list(folder)}
        return {name: status.size for name, status in found.items() if status is not None and status.kind == "file"}

    def refuse_link(self, name: str) -> None:
        refuse_link(self.path / name)

    def open(self, name: str) -> OpenFile:
        return OpenFile(self.path / name)

    def open_to_map(self, name: str, dataset: str, nbytes: int, digest: str) -> OpenFile:
        return self.open(name)

    def at_once(self, calls: Sequence[Callable[[], object]]) -> None:
        for call in calls:
            call()

    def create(self, name: str, durable: bool = True) -> AbstractContextManager[BinaryIO]:
        return create_file(self.path / name, durable)

    def edit(self, name: str, new: bool = False) -> WritableFile:
        return WritableFile(self.path / name, new)

    def replace(self, name: str, data: bytes) -> None:
        replace_file(self.path / name, data)

    def replace_if(self, name: str, data: bytes, expected: Stamp | None) -> bool:
        found = self.stat(name)
        if (None if found is None else found.stamp) != expected:
            return False
        self.replace(name, data)
        return True

    def touch(self, name: str, time: float | None = None) -> None:
        if time is None:
            (self.path / name).touch()
        else:
            os.utime(self.path / name, (time, time), follow_symlinks=os.utime not in os.supports_follow_symlinks)

    def move(self, name: str, to: str) -> None:
        move_file(self.path / name, self.path / to)

    def link_or_copy(self, name: str, target: Storage, to: str) -> bool:
        if isinstance(target, LocalStorage):
            return link_or_copy(self.path / name, target.path / to)
        with stream(self.open(name)) as source, target.create(to) as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
        return False

    def remove(self, name: str) -> bool:
        return remove_file(self.path / name)

    def make_folder(self, name: str = "", new: bool = False) -> None:
        above = [path for path in reversed((self.path / name).parents) if self.path in path.parents]
        for path in above:
            path.mkdir(exist_ok=True)
        missing = [] if name else [path for path in (self.path, *self.path.parents) if not path.exists()]
        (self.path / name).mkdir(parents=not name, exist_ok=not new)
        for path in missing:
            with contextlib.suppress(OSError):  # the folder above may not be readable
                sync_folder(path.parent)

    def relocate(self, target: Path, lock: Lock) -> "LocalStorage":
        move_locked_folder(self.path, target, lock)
        return LocalStorage(target)

    def remove_folder(self, name: str, content: bool = False) -> None:
        if content:
            shutil.rmtree(self.path / name, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.rmdir(self.path / name)

    def sync(self, folder: str = "") -> None:
        sync_folder(self.path / folder)

    def lock(self, name: str, patience: float = 0.0) -> Lock:
        return take_lock(self.path / name, patience)

    def is_locked(self, name: str) -> bool:
        return is_locked(self.path / name)


def _kind(status: os.stat_result) -> str:
    if is_link_status(status):
        return "link"
    if stat.S_ISDIR(status.st_mode):
        return "folder"
    return "file" if stat.S_ISREG(status.st_mode) else "other"
