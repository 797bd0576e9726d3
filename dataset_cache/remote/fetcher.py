"""The fetcher: requests for pieces, several in flight, the most urgent first, adjacent pieces in one request."""

import heapq
import threading
from collections.abc import Callable, Sequence

from ..format import ALIGNMENT

STREAMS = 16  # requests in flight
REQUEST_BYTES = 2 << 20  # up to which adjacent pieces are joined
URGENT = -1  # before everything that is planned
_IDLE_SECONDS = 5.0  # after which a thread without work ends

Pieces = list[tuple[int, int]]  # location and size
Fetch = Callable[[int, int], bytes]  # a location and a size → the bytes there
Deliver = Callable[[Pieces, "bytes | Exception"], None]  # adjacent pieces, and the bytes from the first one on


class Fetcher:
    """Threads that fetch what is queued. They start with the first piece, and end if nothing was queued for a while.

    Methods are called while `changed` is held, which is notified of every delivery. `refill` is called, with it held,
    whenever a thread wants work, to queue more.
    """

    def __init__(
        self, fetch: Fetch, deliver: Deliver, refill: Callable[[], None], changed: threading.Condition
    ) -> None:
        self._fetch, self._deliver, self._refill, self._changed = fetch, deliver, refill, changed
        self._order: list[tuple[int, int]] = []  # heap of (priority, location); some are outdated
        self._queued: dict[int, int] = {}  # location → size
        self._ending: dict[int, int] = {}  # where the next piece would begin → location
        self._flying: dict[int, int] = {}
        self._threads = self._idle = 0
        self._closed = False

    @property
    def queued(self) -> int:
        """Pieces that are not requested yet."""
        return len(self._queued)

    def is_pending(self, location: int) -> bool:
        return location in self._queued or location in self._flying

    def add(self, location: int, size: int, priority: int) -> None:
        """Queue a piece, or raise the priority of one that is queued."""
        if location in self._flying or self._closed:
            return
        heapq.heappush(self._order, (priority, location))
        if self._queued.get(location, -1) < size:
            self._queued[location] = size
            self._ending[_aligned(location + size)] = location
        if len(self._queued) > self._idle and self._threads < STREAMS:
            self._threads += 1
            threading.Thread(target=self._run, name="streamcache-fetch", daemon=True).start()
        self._changed.notify_all()

    def cancel(self) -> list[int]:
        """Forget what is queued; what is in flight is delivered. Returns what was forgotten."""
        forgotten = list(self._queued)
        self._order.clear()
        self._queued.clear()
        self._ending.clear()
        return forgotten

    def close(self) -> None:
        self.cancel()
        self._closed = True
        self._changed.notify_all()

    def _run(self) -> None:
        while pieces := self._take():
            first, size = pieces[0][0], pieces[-1][0] + pieces[-1][1] - pieces[0][0]
            try:
                found: bytes | Exception = self._fetch(first, size)
            except Exception as error:
                found = error
            try:
                self._deliver(pieces, found)
            finally:
                with self._changed:
                    for location, _ in pieces:
                        self._flying.pop(location, None)
                    self._changed.notify_all()

    def _take(self) -> Pieces:
        """The next pieces to request together; none if the thread is to end."""
        with self._changed:
            while not self._closed:
                self._refill()
                if pieces := self._pop():
                    self._flying.update(pieces)
                    return pieces
                self._idle += 1
                woken = self._changed.wait(_IDLE_SECONDS)
                self._idle -= 1
                if not woken and not self._queued:
                    break
            self._threads -= 1
            return []

    def _pop(self) -> Pieces:
        while self._order:
            location = heapq.heappop(self._order)[1]
            if location in self._queued:
                return self._join(location)
        return []

    def _join(self, location: int) -> Pieces:
        """The piece, with queued ones directly before and behind it."""
        pieces = [(location, self._unqueue(location))]
        total = pieces[0][1]
        while (before := self._before(pieces[0][0])) is not None and total < REQUEST_BYTES:
            pieces.insert(0, (before, self._unqueue(before)))
            total += pieces[0][1]
        while (behind := _aligned(sum(pieces[-1]))) in self._queued and total < REQUEST_BYTES:
            pieces.append((behind, self._unqueue(behind)))
            total += pieces[-1][1]
        return pieces

    def _before(self, location: int) -> int | None:
        """The queued piece that ends where this one begins."""
        found = self._ending.get(location, -1)
        return found if found >= 0 and _aligned(found + self._queued.get(found, 0)) == location else None

    def _unqueue(self, location: int) -> int:
        size = self._queued.pop(location)
        self._ending.pop(_aligned(location + size), None)
        return size


def split(pieces: Sequence[tuple[int, int]], data: memoryview) -> list[memoryview]:
    """The bytes of each piece, from those that were fetched together."""
    first = pieces[0][0]
    return [data[location - first : location - first + size] for location, size in pieces]


def _aligned(location: int) -> int:
    """Where the blob behind one that ends here begins."""
    return location + -location % ALIGNMENT
