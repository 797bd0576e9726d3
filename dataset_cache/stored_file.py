"""An open file of a dataset, wherever it is: what it can do, and as a stream or in memory."""

import io
from collections.abc import Sequence
from typing import Any, BinaryIO, Protocol


class StoredFile(Protocol):
    """A file open for reading, from any number of threads. It closes with its last reference."""

    size: int
    identity: tuple[Any, ...]  # changes if another file takes the place of this one

    @property
    def name(self) -> str: ...

    def read(self, offset: int, size: int) -> bytearray: ...

    def read_into(self, offset: int, buffers: Sequence[memoryview], nbytes: int) -> None: ...

    def will_need(self, offset: int, size: int) -> None: ...

    def map(self) -> memoryview: ...


class GrowingFile(Protocol):
    """A file open for writes at any position. Nothing is durable before `sync`."""

    def write(self, offset: int, data: memoryview | bytes) -> None: ...

    def read(self, offset: int, size: int) -> bytes: ...

    def truncate(self, size: int) -> None: ...

    def start_writing(self, offset: int, size: int) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class MemoryFile:
    """Bytes as a file that was never written."""

    identity = ()

    def __init__(self, data: bytes | bytearray, name: str) -> None:
        self._data, self.size, self.name = memoryview(data), len(data), name

    def read(self, offset: int, size: int) -> bytearray:
        return bytearray(self._data[offset : offset + size])

    def read_into(self, offset: int, buffers: Sequence[memoryview], nbytes: int) -> None:
        for buffer in buffers:
            buffer[:] = self._data[offset : offset + len(buffer)]
            offset += len(buffer)

    def will_need(self, offset: int, size: int) -> None:
        pass

    def map(self) -> memoryview:
        return self._data


def stream(file: StoredFile) -> BinaryIO:
    """A stored file as a stream that is read from front to back."""
    return io.BufferedReader(_Stream(file), 1 << 20)


class _Stream(io.RawIOBase):
    def __init__(self, file: StoredFile) -> None:
        self._file, self._position = file, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: self._file.size - self._position]
        if view:
            self._file.read_into(self._position, [view], len(view))
        self._position += len(view)
        return len(view)
