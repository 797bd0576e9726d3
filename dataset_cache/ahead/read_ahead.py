"""Reading ahead: the pieces that come are fetched before they are read, and kept by when they are needed again.

Two marks move over the window of what comes: `planned`, up to which everything is here or on its way, and `read`.
While there is room, `planned` runs ahead freely. Without room it makes some only for what comes soon, from pieces whose
planned uses are all read: of these, the one that is needed last goes. What was not planned is fetched when it is read.
"""

import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ...errors import CacheError
from ..format import SHARDS, ShardFile
from ..index import OFFSET_BITS, split_location
from ..remote import REQUEST_BYTES, RangeReader
from .coming import EMPTY, FAR, Coming
from .fetcher import URGENT, Fetcher, Pieces, scatter, split
from .shelf import Shelf
from .traffic import Traffic

log = logging.getLogger("streamcache")

GRAIN = 64 << 10  # smaller ranges are read in pieces of this size, so that there are not too many
SOON_BYTES = 256 << 20  # of what comes, for which room is made
_MOST_QUEUED = 512
_NEAR = 2  # batches whose pieces are requested one by one
_MATCHED = 8  # batches that may be skipped without losing track
_ATTEMPTS = 5
_LIST_SECONDS = 30.0  # between two looks at the whole folder while others use it

Range = tuple[int, int, int]  # shard, offset, size
BatchRead = tuple[int, int, Sequence[memoryview], int]  # shard, offset, buffers, and their size together


def pieces_of(shard: int, offset: int, size: int, shard_bytes: int) -> Pieces:
    """The pieces that contain a range: the range itself if it is large, else the parts of a grid."""
    base = shard << OFFSET_BITS
    if size >= GRAIN:
        return [(base + offset, size)]
    parts = range(offset // GRAIN, (offset + size - 1) // GRAIN + 1)
    return [(base + part * GRAIN, min(GRAIN, shard_bytes - part * GRAIN)) for part in parts]


class ReadAhead:
    """Reads the shards of one generation through local copies, from any number of threads."""

    def __init__(self, reader: RangeReader, shards: Sequence[ShardFile]) -> None:
        self._reader, self._shards = reader, shards
        self._counts: Counter[str] = Counter()
        self.reset()

    def reset(self) -> None:
        """As if new: a forked child has none of the threads, and one of them may have held the lock."""
        self._changed = threading.Condition()
        own = weakref.proxy(self)  # its threads do not keep alive what is read no more
        self._fetcher = Fetcher(
            lambda *piece: own._fetch(*piece),
            lambda *found: own._deliver(*found),
            lambda *none: own._advance(*none),
            self._changed,
        )
        self._shelf = Shelf(self._shards, self._counts)
        self._coming: Coming | None = None
        self._window, self._planned, self._read, self._batch = EMPTY, 0, 0, 0
        self._soon = SOON_BYTES
        self._halted = False  # after an error, until a request succeeds
        self._asked: dict[int, tuple[float, set[int]]] = {}  # thread → since when it reads a batch, and its pieces
        self._held: dict[int, memoryview] = {}  # fetched for them, or without room to keep it
        self._fresh: set[int] = set()  # fetched and not read yet
        self._failed: dict[int, tuple[float, Exception]] = {}

    @property
    def traffic(self) -> Traffic:
        with self._changed:
            return Traffic(**self._counts)

    def come(self, batches: Iterator[Sequence[Range]]) -> None:
        """These batches come, in this order: fetch them ahead. Replaces what was said before."""
        with self._changed:
            self._stop()
            self._shelf.open()
            self._coming, self._listed = Coming(map(self._pieces, batches)), time.monotonic()
            seen = weakref.ref(self), weakref.ref(self._coming), self._changed
            threading.Thread(target=_look_ahead, args=seen, name="streamcache-ahead", daemon=True).start()

    def stop(self) -> None:
        """Nothing more comes: what is queued is not fetched. What is here stays."""
        with self._changed:
            self._stop()

    def close(self) -> None:
        with self._changed:
            self._stop()
            self._fetcher.close()
            self._shelf.close()

    def read_batch(self, reads: Sequence[BatchRead]) -> None:
        """Read what a batch consists of. If it is one of the next ones, what comes moves on."""
        batch = [(shard, offset, nbytes) for shard, offset, _, nbytes in reads]
        self._ask(batch)
        try:
            for read in reads:
                self.read(*read)
        except BaseException:
            with self._changed:
                self._let_go()
            raise
        self._done(batch)

    def _ask(self, batch: Sequence[Range]) -> None:
        """Fetch at once, side by side, what is missing of a batch."""
        with self._changed:
            self._shelf.open()
            pieces = self._pieces(batch)
            self._asked[threading.get_ident()] = time.monotonic(), {location for location, _ in pieces}
            for location, size in pieces:
                if self._fetcher.is_pending(location) or not self._is_here(location, size):
                    self._fetcher.add(location, size, URGENT)

    def want(self, shard: int, offset: int, size: int) -> None:
        """A hint that a range is read soon; ignored if the order is known."""
        with self._changed:
            if self._coming is None:
                self._shelf.open()
                for location, nbytes in self._pieces([(shard, offset, size)]):
                    if not self._is_here(location, nbytes):
                        self._fetcher.add(location, nbytes, 0)

    def read(self, shard: int, offset: int, buffers: Sequence[memoryview], nbytes: int) -> None:
        """Fill `buffers`, `nbytes` in total. Raises the error of the request if a piece cannot be had."""
        start, end = (shard << OFFSET_BITS) + offset, (shard << OFFSET_BITS) + offset + nbytes
        parts = []
        for location, size in self._pieces([(shard, offset, nbytes)]):
            parts.append(self._get(location, size)[max(start - location, 0) : end - location])
        scatter(parts, buffers)

    def _done(self, batch: Sequence[Range]) -> None:
        locations = [location for location, _ in self._pieces(batch)]
        with self._changed:
            self._let_go()
            for number in range(self._batch, self._batch + _MATCHED):
                span = self._window.batch_range(number)
                if span is not None and self._window.locations(*span) == locations:
                    self._move_on(number + 1, span[1])
                    break

    def _let_go(self) -> None:
        """This thread reads no batch any more: drop what was held for that."""
        self._asked.pop(threading.get_ident(), None)
        self._held = {location: data for location, data in self._held.items() if self._is_asked(location)}

    def forget(self, shard: int, offset: int, size: int) -> None:
        """What was read there is wrong: drop the copies, so that the next read fetches it again."""
        with self._changed:
            for location, _ in self._pieces([(shard, offset, size)]):
                self._shelf.drop(location)
                self._held.pop(location, None)

    def _pieces(self, ranges: Iterable[Range]) -> Pieces:
        """The pieces of these ranges, each once, in order."""
        found: dict[int, int] = {}
        for shard, offset, size in ranges:
            for location, nbytes in pieces_of(shard, offset, size, self._shards[shard].bytes) if size else ():
                found[location] = max(nbytes, found.get(location, 0))
        return list(found.items())

    def _is_here(self, location: int, size: int) -> bool:
        return self._shelf.kept.has(location, size) or len(self._held.get(location, b"")) >= size

    def _is_asked(self, location: int) -> bool:
        return any(location in asked for _, asked in self._asked.values())

    def _get(self, location: int, size: int) -> memoryview:
        since, asked = self._asked.get(threading.get_ident(), (0.0, set[int]()))
        late, since = False, since if location in asked else time.monotonic()
        for _ in range(_ATTEMPTS):
            with self._changed:
                self._shelf.open()
                while self._fetcher.is_pending(location):
                    self._fetcher.add(location, size, URGENT)
                    late = True
                    self._changed.wait(1.0)
                data = self._held.get(location) if location in asked else self._held.pop(location, None)
                here = self._shelf.kept.has(location, size)
                failed = self._failed.pop(location, None)
            if data is None or len(data) < size:
                data = self._shelf.read(location) if here else None
            with self._changed:
                if data is not None and len(data) >= size:
                    self._count_read(location, late)
                    return data
                if failed is not None and failed[0] >= since:
                    raise failed[1]
                if here:
                    self._shelf.drop(location)
                self._fetcher.add(location, size, URGENT)
        return memoryview(self._fetch(location, size))

    def _count_read(self, location: int, late: bool) -> None:
        self._counts["late"] += late
        self._counts["hits"] += location not in self._fresh
        self._fresh.discard(location)

    def _fetch(self, location: int, size: int) -> bytes:
        shard, offset = split_location(location)
        name = f"{SHARDS}/{self._shards[shard].file}"
        (data,) = self._reader.read_ranges(name, [(offset, size)])
        if len(data) != size:
            raise CacheError(
                f"{name}: {len(data):,} of {size:,} bytes came for the range at {offset:,}; check that the dataset is "
                "complete there"
            )
        with self._changed:
            self._counts["requests"] += -(-size // REQUEST_BYTES)
            self._counts["bytes"] += size
        return data

    def _deliver(self, pieces: Pieces, found: bytes | Exception) -> None:
        """Keep what was fetched, or the error for the read that needs it."""
        if isinstance(found, Exception):
            return self._fail(pieces, found)
        for (location, size), data in zip(pieces, split(pieces, memoryview(found))):
            with self._changed:
                self._counts["fetched"] += 1
                self._fresh.add(location)
                self._failed.pop(location, None)
                self._halted = False
                kept = self._shelf.kept.has(location, size) or self._take_in(location, size)
                if not kept or self._is_asked(location):
                    self._held[location] = data
            if kept:
                self._store(location, size, data)

    def _store(self, location: int, size: int, data: memoryview) -> None:
        try:
            self._shelf.write(location, size, data)
        except OSError as error:
            with self._changed:
                self._shelf.refused(location, error)
                self._held[location] = data
                self._fit()

    def _take_in(self, location: int, size: int) -> bool:
        """Room for a piece that was not planned for, if it costs none that is needed sooner."""
        following = self._window.next_use(location, self._planned) if self._coming else FAR
        if not self._shelf.fits(size) and not self._shelf.make_room(size, self._read, following - 1):
            return False
        self._shelf.kept.add(location, size, following=following)
        return True

    def _fail(self, pieces: Pieces, error: Exception) -> None:
        with self._changed:
            for location in [*(location for location, _ in pieces), *self._fetcher.cancel()]:
                self._shelf.kept.discard(location)
            if len(pieces) == 1:  # of several, each is asked for on its own first
                self._failed[pieces[0][0]] = time.monotonic(), error
            # Asking on would repeat the error for everything that comes. The read that needs a piece asks again.
            self._halted, self._planned = True, self._read

    def _move_on(self, batch: int, read: int) -> None:
        before, self._batch, self._read = self._read, batch, read
        for position in range(self._planned, read):  # read before it was planned
            location, size, following = self._window.use(position)
            if self._shelf.kept.has(location, size):
                self._shelf.kept.plan(location, position, following)
        self._planned = max(self._planned, read)
        self._shelf.release(self._shelf.kept.release(set(self._window.locations(before, read)), read))
        self._advance()

    def _advance(self) -> None:
        """Plan as far as there is room."""
        near = self._window.batch_range(self._batch + _NEAR)
        self._fetcher.near = near[0] if near else self._read
        while self._planned < self._window.end and self._fetcher.queued < _MOST_QUEUED and not self._halted:
            location, size, following = self._window.use(self._planned)
            if self._shelf.kept.has(location, size):
                self._shelf.kept.plan(location, self._planned, following)
            elif self._shelf.has_copy(location, size):
                self._shelf.kept.add(location, size, self._planned, following)
            elif self._has_room(size):
                self._shelf.kept.add(location, size, self._planned, following)
                self._fetcher.add(location, size, self._planned)
            else:
                return
            self._planned += 1

    def _has_room(self, size: int) -> bool:
        if self._shelf.fits(size):
            return True
        soon = self._window.bytes_between(self._read, self._planned) + size <= self._soon
        return soon and self._shelf.make_room(size, self._read, self._planned)

    def _extend(self, coming: Coming) -> None:
        with self._changed:
            window, batch = self._window, self._batch
        try:
            window = coming.extend(window, batch)
        except Exception as error:  # reading the batch in its turn raises it
            log.debug("Reading ahead ends: %s", error)
            coming.end()
        with self._changed:
            if self._coming is coming and not window.end:
                return self._stop()  # an empty order
            if self._coming is coming:
                self._window = window
                self._shelf.kept.foresee(window, self._planned, self._read)
                self._fit()
                self._advance()

    def _look_at_others(self) -> None:
        if time.monotonic() - self._listed > _LIST_SECONDS and self._shelf.is_shared:
            self._listed = time.monotonic()
            self._shelf.look_again(self._fetcher.is_pending, self._read)
            self._shelf.kept.foresee(self._window, self._planned, self._read)

    def _fit(self) -> None:
        if self._shelf.fit(self._window):
            self._planned = self._read
        self._soon = max(2 * self._window.largest_batch(), min(SOON_BYTES, self._shelf.limit // 4))

    def _stop(self) -> None:
        if self._coming is not None:
            self._coming.end()
        self._coming = None
        for location in self._fetcher.cancel():
            self._shelf.kept.discard(location)
        self._shelf.kept.forget_plan()
        self._window, self._planned, self._read, self._batch, self._halted = EMPTY, 0, 0, 0, False
        self._changed.notify_all()


def _look_ahead(reading: "weakref.ref[ReadAhead]", order: "weakref.ref[Coming]", changed: threading.Condition) -> None:
    """The thread that extends the window. It holds nothing while it waits, so it ends with the last reader."""
    while True:
        with changed:
            ahead, coming = reading(), order()
            if ahead is None or coming is None or ahead._coming is not coming:
                return
            if not coming.is_short(ahead._window, ahead._planned):
                ahead._look_at_others()
                del ahead, coming
                changed.wait(1.0)
                continue
        ahead._extend(coming)
        del ahead, coming
