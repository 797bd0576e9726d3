"""A remote shard, open for reading through a `ReadAhead`."""

from collections.abc import Sequence

from ..format import SHARDS, ShardFile
from .read_ahead import ReadAhead


class AheadFile:
    """Opening it asks nothing of the server: its size is in the manifest, and what is read is compared with hashes."""

    def __init__(self, ahead: ReadAhead, number: int, shard: ShardFile) -> None:
        self._ahead, self._number = ahead, number
        self.name, self.size, self.identity = f"{SHARDS}/{shard.file}", shard.bytes, ()

    def read_into(self, offset: int, buffers: Sequence[memoryview], nbytes: int) -> None:
        self._ahead.read(self._number, offset, buffers, nbytes)

    def read(self, offset: int, size: int) -> bytearray:
        data = bytearray(size)
        if size:
            self.read_into(offset, [memoryview(data)], size)
        return data

    def will_need(self, offset: int, size: int) -> None:
        self._ahead.want(self._number, offset, size)

    def map(self) -> memoryview:
        return memoryview(self.read(0, self.size))
