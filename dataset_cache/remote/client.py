"""What a kind of remote place must be able to do: one request per call. Everything else is built on these."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from ..address import Address
from .roots import Options

Bytes = bytes | bytearray | memoryview
ANY = "any"  # for `put`: whatever is there is replaced


@dataclass(frozen=True)
class Found:
    """A remote file as one answer described it. `tag` changes with its content; empty if the server has none."""

    size: int
    modified: float
    tag: str


@dataclass(frozen=True)
class Listing:
    files: dict[str, Found]
    folders: list[str]


class Upload:
    """A file that is being uploaded: what is written to it is sent."""

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self._send, self._written = send, 0

    def write(self, data: Bytes) -> int:
        view = memoryview(data).cast("B")
        self._send(bytes(view))
        self._written += len(view)
        return len(view)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        pass


class Client(Protocol):
    """Requests below one address. Names are relative to it. Raises `Fault`, and retries nothing."""

    def head(self, name: str) -> Found: ...

    def get(self, name: str, start: int, size: int) -> tuple[Found, Bytes]:
        """Up to `size` bytes from `start` on, which is before the end, and the file that they are from."""
        ...

    def list(self, folder: str) -> Listing: ...

    def put(self, name: str, data: bytes, expected: str | None = ANY) -> None:
        """Put a whole file; only if its tag is still `expected`, or with None if there is none."""
        ...

    def writer(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A file that is there with everything that was written when the `with` ends without an error."""
        ...

    def copy(self, name: str, to: str) -> None: ...

    def delete(self, name: str) -> None: ...


Connect = Callable[[Address, Options], Client]
