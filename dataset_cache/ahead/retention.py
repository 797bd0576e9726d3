"""Retention: which pieces are kept within a byte limit. The one that is needed last, as far as is known, goes first.

Pieces whose coming use was planned for and has not been read stay, whatever comes.
"""

import heapq
from collections.abc import Iterable

import numpy as np

from .coming import FAR, Window

NEVER = -1  # the last planned use of a piece that no plan has used


class Retention:
    """The pieces that are here or on their way, by location: their sizes and when they are needed next."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._sizes: dict[int, int] = {}
        self._next: dict[int, int] = {}  # the first use behind those that are planned
        self._last: dict[int, int] = {}  # the last planned use
        self._idle: list[tuple[int, int]] = []  # heap of (-next use, location) of pieces that may go; some are outdated

    def __len__(self) -> int:
        return len(self._sizes)

    def has(self, location: int, size: int) -> bool:
        """Whether a piece is here that begins at the location and is large enough."""
        return self._sizes.get(location, -1) >= size

    def size(self, location: int) -> int | None:
        return self._sizes.get(location)

    def fits(self, size: int) -> bool:
        return self.used + size <= self.limit

    def add(self, location: int, size: int, planned: int = NEVER, following: int = FAR) -> None:
        """A piece that is here or will be; `planned` is the position of the use that it was fetched for."""
        self.discard(location)
        self._sizes[location] = size
        self.used += size
        self.plan(location, planned, following)

    def plan(self, location: int, planned: int, following: int) -> None:
        """This use of a piece is planned: it stays until the use is read, and is then needed again at `following`."""
        self._next[location], self._last[location] = following, planned
        if planned == NEVER:
            heapq.heappush(self._idle, (-following, location))

    def release(self, locations: Iterable[int], read: int) -> list[int]:
        """Everything before position `read` is read: returns the pieces, among these, of which no use is planned."""
        done = [location for location in locations if self._last.get(location, read) < read]
        for location in done:
            heapq.heappush(self._idle, (-self._next[location], location))
        return done

    def pop_idle(self, read: int) -> int | None:
        """The piece that is needed last of those that may go, taken from the list: discard it or `put_back`."""
        while self._idle:
            following, location = heapq.heappop(self._idle)
            if self._next.get(location) == -following and self._last[location] < read:
                return location
        return None

    def put_back(self, location: int) -> None:
        heapq.heappush(self._idle, (-self._next[location], location))

    def next_use(self, location: int) -> int:
        return self._next[location]

    def discard(self, location: int) -> None:
        """The piece is gone."""
        size = self._sizes.pop(location, None)
        if size is not None:
            self.used -= size
            del self._next[location], self._last[location]

    def foresee(self, window: Window, planned: int, read: int) -> None:
        """The window has changed: look up the next use of every piece behind the planned ones again."""
        locations = np.fromiter(self._sizes, "<u8", len(self._sizes))
        following = window.next_uses(locations, planned).tolist()
        self._next = dict(zip(self._sizes, following))
        self._idle = [(-self._next[one], one) for one in self._sizes if self._last[one] < read]
        heapq.heapify(self._idle)

    def forget_plan(self) -> None:
        """No use is planned any more: everything may go, in any order."""
        self._last = dict.fromkeys(self._sizes, NEVER)
        self._next = dict.fromkeys(self._sizes, FAR)
        self._idle = [(-FAR, location) for location in self._sizes]

    def planned(self, read: int) -> list[int]:
        """The pieces with planned uses that are not read yet."""
        return [location for location, last in self._last.items() if last >= read]

    def pieces(self) -> list[tuple[int, int]]:
        """Location and size of all."""
        return list(self._sizes.items())
