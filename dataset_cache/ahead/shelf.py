"""The shelf: local copies of the pieces of one generation, within a byte limit that all datasets share.

It is a folder; memory if there is no room for two batches, or the folder cannot be written to.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ...errors import CacheError
from ..format import ShardFile
from ..index import OFFSET_BITS, split_location
from .coming import Window
from .limit import blocks_folder, cache_limit
from .pieces import Piece, PieceFolder, PieceMemory, PieceStore
from .retention import Retention

log = logging.getLogger("streamcache")

STREAM_BYTES = 128 << 20  # in memory, for reading ahead without local copies


class Shelf:
    """What is here or on its way, and where its copies are. `counts` counts what is evicted and lost.

    Every piece that is `kept` may have vanished when it is read: another process may have removed it.
    """

    def __init__(self, shards: Sequence[ShardFile], counts: Counter[str]) -> None:
        self._shards, self._counts = shards, counts
        self._numbers = {shard.hash: number for number, shard in enumerate(shards)}
        self._store: PieceStore | None = None
        self._others: list[Piece] = []  # pieces of other datasets
        self._others_sorted = False  # the one to go first is the last
        self._others_bytes = 0
        self._noticed = False
        self.kept = Retention(0)

    def open(self) -> None:
        """Look what is there, before the first read: nothing is written for a dataset that is only looked at."""
        if self._store is None:
            self._open()

    @property
    def store(self) -> PieceStore:
        return self._store or self._open()

    @property
    def limit(self) -> int:
        return self.kept.limit

    @property
    def is_shared(self) -> bool:
        """Whether other readers use the same folder now."""
        return self.store.others() > 0

    def fits(self, size: int) -> bool:
        return self.kept.used + self._others_bytes + size <= self.kept.limit

    def make_room(self, size: int, read: int, needed: int) -> bool:
        """Remove pieces that are needed after `needed`, none with a planned use from `read` on. False if in vain."""
        kept, store, spared = self.kept, self.store, list[int]()
        while not self.fits(size):
            if self._others and kept.used + size <= kept.limit // (1 + store.others()):
                self._remove_other(store)
                continue
            location = kept.pop_idle(read)
            if location is None:
                break
            if kept.next_use(location) <= needed:
                spared.append(location)
                break
            if store.remove(self._piece(location)):
                kept.discard(location)
                self._counts["evictions"] += 1
            else:  # another process needs it
                spared.append(location)
        for location in spared:
            kept.put_back(location)
        return self.fits(size)

    def write(self, location: int, size: int, data: memoryview) -> None:
        """Store a piece that is kept. Raises OSError if the disk refuses."""
        self.store.write(self._named(location, size), data)

    def read(self, location: int) -> memoryview | None:
        """A kept piece, or None if its copy has vanished or is damaged."""
        return self.store.read(self._piece(location))

    def drop(self, location: int) -> None:
        """Remove a copy that is not what it should be."""
        if self.kept.size(location) is not None:
            self.store.remove(self._piece(location))
            self.kept.discard(location)
        self._counts["lost"] += 1

    def has_copy(self, location: int, size: int) -> bool:
        """Whether another process has stored this piece meanwhile."""
        return self.is_shared and self.store.has(self._named(location, size))

    def release(self, locations: Iterable[int]) -> None:
        """Tell other processes that these pieces are not needed now."""
        if self.is_shared:
            for location in locations:
                self.store.release(self._piece(location))

    def look_again(self, is_pending: Callable[[int], bool], read: int) -> None:
        """Learn what other processes have stored and removed, and tell them which pieces are needed here."""
        self._take_stock(is_pending)
        for location in self.kept.planned(read):
            self.store.claim(self._piece(location))

    def refused(self, location: int, error: OSError) -> None:
        """The disk did not take a piece: from now on keep no more than it holds now."""
        self.kept.discard(location)
        self.kept.limit = min(self.kept.limit, self.kept.used + self._others_bytes)
        self._notice(error.strerror or str(error))

    def fit(self, window: Window) -> bool:
        """Stream through memory if the limit cannot hold two batches: copies would stall what they should speed up.

        True if the shelf was cleared for that.
        """
        largest = window.largest_batch()
        if isinstance(self.store, PieceMemory):
            self.kept.limit = max(STREAM_BYTES, 3 * largest)
            return False
        if self.kept.limit >= 2 * largest and self.kept.limit:
            return False
        self._notice(f"their limit of {self.kept.limit:,} bytes is less than two batches, {2 * largest:,}")
        self.store.close()
        self._stream()
        self.kept.limit = max(STREAM_BYTES, 3 * largest)
        return True

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _open(self) -> PieceStore:
        folder = blocks_folder()
        try:
            if cache_limit():
                self._store = PieceFolder(folder)
                self._take_stock(lambda location: False)
                self.kept.limit = cache_limit(self.kept.used + self._others_bytes)
                self.make_room(0, 0, -1)
                return self._store
        except (OSError, CacheError) as error:
            self._notice(error.strerror if isinstance(error, OSError) and error.strerror else str(error))
        return self._stream()

    def _stream(self) -> PieceStore:
        self._store, self._others, self._others_bytes = PieceMemory(), [], 0
        self.kept = Retention(STREAM_BYTES)
        return self._store

    def _notice(self, reason: str) -> None:
        if not self._noticed:
            log.warning("%s: no further local copies are kept (%s); training goes on", blocks_folder(), reason)
            self._noticed = True

    def _take_stock(self, is_pending: Callable[[int], bool]) -> None:
        own: dict[int, int] = {}
        self._others, self._others_sorted = [], False
        for piece in self.store.pieces():
            number = self._numbers.get(piece.shard)
            if number is None:
                self._others.append(piece)
            else:
                own[(number << OFFSET_BITS) + piece.start] = piece.size
        self._others_bytes = sum(piece.size for piece in self._others)
        for location, _ in self.kept.pieces():
            if location not in own and not is_pending(location):
                self.kept.discard(location)
        for location, size in own.items():
            if self.kept.size(location) is None:
                self.kept.add(location, size)

    def _remove_other(self, store: PieceStore) -> None:
        """The piece of another dataset that was used longest ago. One that its reader needs stays, and counts on."""
        if not self._others_sorted:
            self._others, self._others_sorted = store.oldest_first(self._others)[::-1], True
        piece = self._others.pop()
        if store.remove(piece):
            self._others_bytes -= piece.size
            self._counts["evictions"] += 1

    def _piece(self, location: int) -> Piece:
        return self._named(location, self.kept.size(location) or 0)

    def _named(self, location: int, size: int) -> Piece:
        shard, offset = split_location(location)
        return Piece(self._shards[shard].hash, offset, size)
