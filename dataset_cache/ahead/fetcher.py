"""The fetcher: requests for pieces, several in flight, the most urgent first, pieces near each other in one request."""

import heapq
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

STREAMS = 16  # requests in flight
GAP_BYTES = 32 << 10  # pieces less far apart are joined; less than a piece, which may be here already
REQUEST_BYTES, NEAR_BYTES = 2 << 20, 256 << 10  # up to which they are; less if they are needed next
URGENT = -1  # before everything that is planned
_IDLE_SECONDS = 5.0  # after which a thread without work ends

Pieces = list[tuple[int, int]]  # location and size
Fetch = Callable[[int, int], bytes]  # a location and a size → the bytes there
Deliver = Callable[[Pieces, "bytes | Exception"], None]  # pieces of one request, and the bytes from the first one on


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
        self._places: list[int] = []  # the same locations, sorted
        self._flying: dict[int, int] = {}
        self._alone: set[int] = set()  # requested on their own: a request for them and others has failed
        self._threads = self._idle = 0
        self._closed = False
        self.near = 0  # pieces of a lower priority are needed next: they should not wait for others

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
        if location not in self._queued:
            insort(self._places, location)
        self._queued[location] = max(size, self._queued.get(location, 0))
        if len(self._queued) > self._idle and self._threads < STREAMS:
            self._threads += 1
            threading.Thread(target=self._run, name="streamcache-fetch", daemon=True).start()
        self._changed.notify_all()

    def cancel(self) -> list[int]:
        """Forget what is queued; what is in flight is delivered. Returns what was forgotten."""
        forgotten = list(self._queued)
        self._order.clear()
        self._queued.clear()
        self._places.clear()
        return forgotten

    def close(self) -> None:
        self.cancel()
        self._closed = True
        self._changed.notify_all()

    def _run(self) -> None:
        try:
            while pieces := self._take():
                self._bring(pieces)
        except BaseException as error:  # such as a lack of memory: another thread takes its place
            with self._changed:
                self._threads -= 1
            if not isinstance(error, ReferenceError):  # whom it fetches for is gone
                raise

    def _bring(self, pieces: Pieces) -> None:
        first, size = pieces[0][0], pieces[-1][0] + pieces[-1][1] - pieces[0][0]
        try:
            found: bytes | Exception = self._fetch(first, size)
        except Exception as error:
            found = error
        try:
            self._deliver(pieces, found)
        finally:
            with self._changed:
                self._landed([location for location, _ in pieces], isinstance(found, Exception))

    def _landed(self, locations: list[int], failed: bool) -> None:
        for location in locations:
            del self._flying[location]
        if not failed:
            self._alone.difference_update(locations)
        elif len(locations) > 1:
            self._alone.update(locations)
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
            priority, location = heapq.heappop(self._order)
            if location in self._queued:
                return self._join(location, NEAR_BYTES if priority < self.near else REQUEST_BYTES)
        return []

    def _join(self, location: int, most: int) -> Pieces:
        """The piece, with queued ones near it as long as they are fewer bytes than that."""
        places = self._places
        first = last = bisect_left(places, location)
        while first > 0 and self._are_near(first - 1) and self._span(first, last) < most:
            first -= 1
        while last + 1 < len(places) and self._are_near(last) and self._span(first, last) < most:
            last += 1
        joined = places[first : last + 1]
        del places[first : last + 1]
        return [(place, self._queued.pop(place)) for place in joined]

    def _are_near(self, number: int) -> bool:
        """Whether a queued piece and the next one are better fetched together, with what is between them."""
        one, other = self._places[number], self._places[number + 1]
        return other - one - self._queued[one] <= GAP_BYTES and one not in self._alone and other not in self._alone

    def _span(self, first: int, last: int) -> int:
        return self._places[last] + self._queued[self._places[last]] - self._places[first]


def split(pieces: Sequence[tuple[int, int]], data: memoryview) -> list[memoryview]:
    """The bytes of each piece, from those that were fetched together."""
    first = pieces[0][0]
    return [data[location - first : location - first + size] for location, size in pieces]


def scatter(parts: Sequence[memoryview], buffers: Sequence[memoryview]) -> None:
    """Copy the parts, one after the other, into the buffers, one after the other."""
    targets = iter(buffers)
    target = next(targets, memoryview(b""))
    for part in parts:
        while part:
            while not target:
                target = next(targets)
            count = min(len(part), len(target))
            target[:count], part, target = part[:count], part[count:], target[count:]
