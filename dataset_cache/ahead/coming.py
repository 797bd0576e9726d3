"""What comes: the pieces that the coming batches need, in order, far enough ahead to know when each is needed again.

A window of flat arrays moves over the order of training. A position counts the uses of pieces from the first batch on;
the same piece has many. The window is as long as it must be to contain every piece once more, within a limit.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

FAR = 1 << 62  # the next use of a piece that is not needed again, as far as is known
FIRST_BATCHES = 32
MOST_USES = 2 << 20  # in the window: 32 bytes each
_WITHOUT_PAUSE, _PAUSE_SECONDS = 64, 0.002  # batches: training needs Python too
Uses = Sequence[tuple[int, int]]  # location and size of each piece of a batch


@dataclass(frozen=True, eq=False)
class Window:
    """The uses from position `first` on, and where each batch from number `batch` on ends. Arrays are not changed."""

    first: int
    batch: int
    where: np.ndarray  # u64: location of the piece, shard << 40 | offset
    size: np.ndarray  # i64
    following: np.ndarray  # i64: the position where the piece is needed again, or FAR
    sums: np.ndarray  # i64: bytes before each use
    ends: np.ndarray  # i64: the position behind each batch

    @property
    def end(self) -> int:
        return self.first + len(self.where)

    def use(self, position: int) -> tuple[int, int, int]:
        """Location, size and next use of the piece at a position."""
        i = position - self.first
        return int(self.where[i]), int(self.size[i]), int(self.following[i])

    def bytes_between(self, start: int, stop: int) -> int:
        """Bytes of the uses in between, counting a piece as often as it is used."""
        return int(self.sums[stop - self.first] - self.sums[start - self.first])

    def locations(self, start: int, stop: int) -> list[int]:
        return self.where[start - self.first : stop - self.first].tolist()

    def batch_range(self, batch: int) -> tuple[int, int] | None:
        """The positions of a batch, or None if it is not in the window."""
        i = batch - self.batch
        if not 0 <= i < len(self.ends):
            return None
        return int(self.ends[i - 1]) if i else self.first, int(self.ends[i])

    def largest_batch(self) -> int:
        """The most bytes that one batch needs."""
        edges = np.concatenate([[0], self.ends - self.first])
        return int(np.diff(self.sums[edges]).max(initial=0))

    def next_use(self, location: int, position: int) -> int:
        """The first use of a piece at or after a position, or FAR."""
        found = np.flatnonzero(self.where[position - self.first :] == np.uint64(location))
        return int(found[0]) + position if len(found) else FAR

    def next_uses(self, locations: np.ndarray, position: int) -> np.ndarray:
        """The same for many pieces."""
        found, first = np.unique(self.where[position - self.first :], return_index=True)
        if not len(found):
            return np.full(len(locations), FAR, np.int64)
        place = np.searchsorted(found, locations).clip(max=len(found) - 1)
        return np.where(found[place] == locations, first[place] + position, FAR)


_NONE = np.empty(0, "<i8")
EMPTY = Window(0, 0, _NONE.astype("<u8"), _NONE, _NONE, np.zeros(1, "<i8"), _NONE)


class Coming:
    """Reads an order of batches ahead, one window after the other. Only one thread may extend it."""

    def __init__(self, batches: Iterator[Uses]) -> None:
        self._batches = batches
        self._ended = False  # nothing comes any more
        self._settled = 0  # uses ahead when every piece was in the window
        self._step = FIRST_BATCHES
        self.reached = 0  # the end of the last window

    def end(self) -> None:
        """Read no further."""
        self._ended = True

    def is_short(self, window: Window, position: int) -> bool:
        """Whether the window should reach further beyond this position."""
        ahead = window.end - position
        return not self._ended and ahead < (self._settled or MOST_USES)

    def extend(self, window: Window, keep: int) -> Window:
        """A longer window, without what comes before batch `keep`. The first steps are short, later ones longer."""
        come, sizes, lengths, ended = self._read()
        cut = window.batch_range(keep)
        start = cut[0] if cut else window.first
        old = start - window.first
        where = np.concatenate([window.where[old:], come])
        size = np.concatenate([window.size[old:], sizes])
        ends = np.cumsum(lengths) + window.end
        following, seen = _next_uses(where, start)
        grown = Window(
            start,
            keep if cut else window.batch,
            where,
            size,
            following,
            np.concatenate([[0], np.cumsum(size)]),
            np.concatenate([window.ends[keep - window.batch if cut else 0 :], ends]),
        )
        # Nothing new came for as long as before: every piece is in either half, also if the order goes on from here.
        if bool(seen[window.end - start :].all()) or len(where) >= MOST_USES:
            self._settled = self._settled or len(where)
        room = (MOST_USES - len(where)) * len(grown.ends) // max(len(where), 1)  # in batches
        self._step = max(FIRST_BATCHES, len(grown.ends) // 4 if self._settled else min(len(grown.ends), room))
        self.reached = grown.end
        self._ended = self._ended or ended
        return grown

    def _read(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
        """Locations and sizes of the next uses, how many each batch has, and whether these were the last."""
        parts, left, ended = [_flat([])], self._step, False
        while left and not ended and not self._ended:
            some = list(islice(self._batches, min(left, _WITHOUT_PAUSE)))
            parts.append(_flat(some))
            ended = len(some) < min(left, _WITHOUT_PAUSE)
            left -= len(some)
            if left and not ended:
                time.sleep(_PAUSE_SECONDS)
        come, sizes, lengths = (np.concatenate([part[n] for part in parts]) for n in range(3))
        return come, sizes, lengths, ended


def _flat(batches: Sequence[Uses]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (
        np.array([location for uses in batches for location, _ in uses], "<u8"),
        np.array([size for uses in batches for _, size in uses], "<i8"),
        np.array([len(uses) for uses in batches], "<i8"),
    )


def _next_uses(where: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
    """For every use the position of the next one of the same piece, and whether there was one before."""
    order = np.argsort(where, kind="stable")
    same = where[order[1:]] == where[order[:-1]]
    following, seen = np.full(len(where), FAR, np.int64), np.zeros(len(where), bool)
    following[order[:-1][same]] = order[1:][same] + first
    seen[order[1:][same]] = True
    return following, seen
