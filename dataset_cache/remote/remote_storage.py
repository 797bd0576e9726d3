"""The storage of a dataset at an address. Files are read by ranges, and replaced as a whole.

What an object store cannot do is refused, with the way around: nothing is built, locked or cleaned in place.
"""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeVar

from ...errors import CacheError
from ..address import Address
from ..format import MANIFEST, SCHEMES, Lock, Stamp, Status, Storage, StoredFile
from ..stored_file import stream
from .client import Bytes, Client, Found
from .faults import CHANGED, CONFLICT, MISSING, REFUSED, UNSUPPORTED, Fault, explain, patiently
from .fsspec_client import FsspecClient
from .hub_client import HubClient
from .index_copies import open_copy
from .obstore_client import ObstoreClient
from .ranges import REQUEST_BYTES, Request, at_once, plan_requests
from .remote_file import HEAD_BYTES, RemoteFile, Take
from .roots import options_for

_PIECES_AT_ONCE = 8
_COPY_BYTES = 4 << 20
T = TypeVar("T")


@dataclass(frozen=True)
class RemoteStorage:
    """The dataset at an address."""

    path: Address
    client: Client
    is_remote = True

    # Looking

    def exists(self) -> bool:
        return self.stat(MANIFEST) is not None or self._listing("") is not None

    def stat(self, name: str) -> Status | None:
        found = self._send(name, lambda: self.client.head(name), None) if name else None
        if found is not None:
            return Status("file", found.size, found.modified, _stamp(found))
        listing = self._listing(name)
        return Status("folder", 0, 0.0, ()) if listing is not None else None

    def list(self, folder: str = "") -> list[str]:
        found = self._listing(folder)
        return [] if found is None else found

    def sizes(self, folder: str = "") -> dict[str, int]:
        try:
            return {name: found.size for name, found in patiently(lambda: self.client.list(folder)).files.items()}
        except Fault as fault:
            if fault.kind in (MISSING, UNSUPPORTED):
                return {}
            raise explain(self.path / folder, fault) from None

    def _listing(self, folder: str) -> "list[str] | None":
        """The names in a folder; None if there is nothing, or if this kind of place cannot be listed."""
        try:
            found = patiently(lambda: self.client.list(folder))
        except Fault as fault:
            if fault.kind in (MISSING, UNSUPPORTED):
                return None
            raise explain(self.path / folder, fault) from None
        return sorted([*found.files, *found.folders]) or None

    def refuse_link(self, name: str) -> None:
        """There are no links at addresses."""

    # Reading

    def open(self, name: str) -> RemoteFile:
        def first() -> tuple[Found, Bytes]:
            try:
                return self.client.get(name, 0, HEAD_BYTES)
            except Fault as fault:
                if fault.kind == REFUSED and "416" in fault.detail:  # an empty file has no first byte
                    return self.client.head(name), b""
                raise

        found, head = self._send(name, first)

        def request(offset: int, size: int, take: Take) -> None:
            self._request(name, [(offset, size)], lambda _, start, data: take(start, data), found)

        return RemoteFile(self.path / name, name, found, head, request)

    def open_to_map(self, name: str, dataset: str, nbytes: int, digest: str) -> StoredFile:
        return open_copy(str(self.path / name), name, dataset, nbytes, digest, lambda: self._pieces(name))

    def _pieces(self, name: str) -> Iterator[bytearray]:
        """The content of a file in order, read by several requests at once."""
        file, step = self.open(name), _PIECES_AT_ONCE * REQUEST_BYTES
        for start in range(0, file.size, step):
            data = bytearray(min(step, file.size - start))
            file.read_into(start, [memoryview(data)], len(data))
            yield data

    def at_once(self, calls: Sequence[Callable[[], object]]) -> None:
        at_once(calls)

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> "list[bytes]":
        """Parts of a file without opening it; see `RangeReader`."""
        result = [bytearray(size) for _, size in ranges]

        def take(number: int, start: int, data: memoryview) -> None:
            result[number][start : start + len(data)] = data

        self._request(name, ranges, take)
        return [bytes(data) for data in result]

    def _request(
        self,
        name: str,
        ranges: Sequence[tuple[int, int]],
        take: Callable[[int, int, memoryview], None],
        expected: Found | None = None,
    ) -> None:
        """Ask for ranges, several at once. `take` gets the number of a range, and where in it what came begins."""

        def read(request: Request) -> None:
            data = self._get(name, request, expected)
            for number, start, at, size in request.pieces:
                take(number, start, data[at : at + size])

        at_once([partial(read, request) for request in plan_requests(ranges)])

    def _get(self, name: str, request: Request, expected: Found | None = None) -> memoryview:
        def get() -> memoryview:
            found, data = self.client.get(name, request.offset, request.size)
            if expected is not None and (found.size != expected.size or found.tag != expected.tag):
                sizes = f"{expected.size:,} bytes before, {found.size:,} now"
                raise Fault(CHANGED, sizes if found.size != expected.size else "it has another tag")
            if len(data) != request.size:
                raise Fault(CHANGED, f"it ends at {request.offset + len(data):,}")
            return memoryview(data)

        return self._send(name, get)

    # Writing

    @contextmanager
    def create(self, name: str, durable: bool = True) -> Iterator[BinaryIO]:
        try:
            with self.client.writer(name) as file:
                yield file
        except Fault as fault:
            raise explain(self.path / name, fault) from None

    def replace(self, name: str, data: bytes) -> None:
        self._send(name, lambda: self.client.put(name, data))

    def replace_if(self, name: str, data: bytes, expected: Stamp | None) -> bool:
        tag = None if expected is None else str(expected[0])
        if tag == "":  # without a tag, nothing can be compared
            raise CacheError(f"{self.path / name}: the place does not say whether a file has changed; push elsewhere")
        try:
            patiently(lambda: self.client.put(name, data, tag))
            return True
        except Fault as fault:
            if fault.kind not in (CONFLICT, MISSING):
                raise explain(self.path / name, fault) from None
        # An attempt whose answer was lost may have been the one that put it there.
        there = self.stat(name)
        return there is not None and there.size == len(data) and bytes(self.open(name).read(0, len(data))) == data

    def touch(self, name: str, time: float | None = None) -> None:
        if self.stat(name) is None and time is None:
            self._send(name, lambda: self.client.put(name, b""))

    def move(self, name: str, to: str) -> None:
        self._send(name, lambda: self.client.copy(name, to))
        self._send(name, lambda: self.client.delete(name), None)

    def link_or_copy(self, name: str, target: Storage, to: str) -> bool:
        with stream(self.open(name)) as source, target.create(to) as copy:
            while data := source.read(_COPY_BYTES):
                copy.write(data)
        return False

    def remove(self, name: str) -> bool:
        if self.stat(name) is None:
            return True
        try:
            patiently(lambda: self.client.delete(name))
        except Fault as fault:
            return fault.kind == MISSING
        return self.stat(name) is None

    def make_folder(self, name: str = "", new: bool = False) -> None:
        """There are no folders, only names with `/`."""
        if new and self._listing(name) is not None:
            raise FileExistsError(f"{self.path / name} exists")

    def remove_folder(self, name: str, content: bool = False) -> None:
        for below in self.list(name) if content else []:
            self.remove_folder(f"{name}/{below}", content=True)
            self.remove(f"{name}/{below}")

    def sync(self, folder: str = "") -> None:
        """A file is durable when its upload has ended."""

    def edit(self, name: str, new: bool = False) -> NoReturn:
        self._refuse()

    def relocate(self, target: Path, lock: Lock) -> NoReturn:
        self._refuse()

    def lock(self, name: str, patience: float = 0.0) -> NoReturn:
        self._refuse()

    def is_locked(self, name: str) -> bool:
        return False

    def _refuse(self) -> NoReturn:
        raise CacheError(
            f"{self.path}: is an address, where nothing is built or changed in place; do this to the cache in a local "
            "folder, and push it"
        )

    def _send(self, name: str, request: Callable[[], T], *missing: T) -> T:
        """The answer to a request; a second argument is the answer if there is nothing of this name."""
        try:
            return patiently(request)
        except Fault as fault:
            if missing and fault.kind == MISSING:
                return missing[0]
            raise explain(self.path / name if name else self.path, fault) from None


def _stamp(found: Found) -> Stamp:
    return (found.tag, int(found.modified), found.size)


def open_remote(text: str) -> RemoteStorage:
    """The storage at an address. No request is made, and nothing of another package is loaded, before it is used."""
    address = Address.parse(text)
    options = options_for(address)
    if address.scheme == "hf":
        return RemoteStorage(address, HubClient(address, options))
    connect = ObstoreClient if importlib.util.find_spec("obstore") else FsspecClient
    return RemoteStorage(address, connect(address, options))


SCHEMES.update(dict.fromkeys(("s3", "gs", "az", "http", "https", "hf"), open_remote))
