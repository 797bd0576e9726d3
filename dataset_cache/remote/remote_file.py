"""A file at an address, open for reading: its first bytes came with the answer that opened it."""

import threading
from collections.abc import Callable, Sequence

from ...errors import CacheError
from ..address import Address
from .client import Bytes, Found

HEAD_BYTES = 256 << 10  # contains the header of nearly every shard, and whole manifests
_FIRST_WINDOW, _LARGEST_WINDOW = 1 << 20, 32 << 20  # read ahead of a reader that goes from front to back
_NEAR_BYTES = 1 << 20

Take = Callable[[int, Bytes], None]  # a part of what was asked for, and where it begins in that
Requesting = Callable[[int, int, Take], None]  # asks for a range: offset, size


class RemoteFile:
    """Reads are checked against what was opened: a file that was replaced since is refused, not mixed."""

    def __init__(self, place: Address, path: str, found: Found, head: Bytes, request: Requesting) -> None:
        self.path, self.size, self.name = path, found.size, path.rpartition("/")[2]
        self.identity: tuple[int | str, ...] = (found.size, found.tag)
        self._place, self._head, self._request = place, memoryview(head), request
        self._lock = threading.Lock()
        self._window: tuple[int, bytes] = (0, b"")
        self._end = -1  # of the last read, to notice a reader that goes from front to back
        self._ahead = _FIRST_WINDOW

    def read_into(self, offset: int, buffers: Sequence[memoryview], nbytes: int) -> None:
        self._check(offset, nbytes)
        if offset + nbytes <= len(self._head):
            _scatter(self._head[offset : offset + nbytes], 0, buffers)
        else:
            self._request(offset, nbytes, lambda start, data: _scatter(data, start, buffers))

    def read(self, offset: int, size: int) -> bytearray:
        """Reads that follow each other are served from a window that is read ahead."""
        self._check(offset, size)
        if offset + size <= len(self._head):
            self._end = offset + size
            return bytearray(self._head[offset : offset + size])
        with self._lock:
            start, data = self._window
            if not start <= offset <= offset + size <= start + len(data):
                follows = 0 <= offset - self._end <= _NEAR_BYTES
                self._ahead = min(2 * self._ahead, _LARGEST_WINDOW) if follows else _FIRST_WINDOW
                wanted = max(size, self._ahead) if follows else size
                start, data = offset, self._fetch(offset, min(wanted, self.size - offset))
                self._window = (start, data) if follows else (0, b"")
            self._end = offset + size
            return bytearray(memoryview(data)[offset - start : offset - start + size])

    def will_need(self, offset: int, size: int) -> None:
        """Nothing is read ahead of time here."""

    def map(self) -> memoryview:
        """The whole file in memory. An index is mapped from a local copy instead."""
        return memoryview(self._fetch(0, self.size)).toreadonly()

    def _fetch(self, offset: int, size: int) -> bytes:
        data = bytearray(size)
        self.read_into(offset, [memoryview(data)], size)
        return data  # pyright: ignore[reportReturnType] - read-only from here on

    def _check(self, offset: int, nbytes: int) -> None:
        if offset + nbytes > self.size:
            raise CacheError(f"{self._place}: ends at {self.size:,}, before the data that it should contain")


def _scatter(data: Bytes, start: int, buffers: Sequence[memoryview]) -> None:
    """Copy data that belongs `start` bytes after the beginning of the first buffer."""
    view = memoryview(data)
    for buffer in buffers:
        if start < len(buffer) and view:
            count = min(len(buffer) - start, len(view))
            buffer[start : start + count] = view[:count]
            view, start = view[count:], 0
        else:
            start -= min(start, len(buffer))
