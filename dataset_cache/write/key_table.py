"""Key table: which entry of a generation has a key, for a writer that asks for thousands of them."""

from __future__ import annotations

from array import array
from bisect import bisect_left

import numpy as np

from ..format import Index

_FEW = 64  # questions that the mapped index answers itself, in a quarter of the table's making for 1,000 entries


class KeyTable:
    """Looks keys up like the index does, but twenty times faster after the first few: 8 bytes an entry, in memory."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._asked = 0
        self._order: np.ndarray = index.arrays.entry_order
        self._halves: array[int] | None = None

    def find(self, key: bytes) -> int | None:
        if self._halves is None:
            self._asked += 1
            if self._asked <= _FEW:
                return self._index.find_entry(key)
            self._halves = self._first_halves()
        wanted = int.from_bytes(key[:8], "big")
        place = bisect_left(self._halves, wanted)
        while place < len(self._halves) and self._halves[place] == wanted:
            entry = int(self._order[place])
            if self._index.key_of(entry) == key:
                return entry
            place += 1
        return None

    def _first_halves(self) -> array[int]:
        """The first 8 bytes of every key as a number, in the order of the keys."""
        entries = self._index.arrays.entries
        # A damaged order may point anywhere; whatever is found there is compared with the whole key.
        order = self._order = np.minimum(self._order, max(0, len(entries) - 1))
        keys = np.ascontiguousarray(entries["key"][order]).view(">u8").reshape(-1, 2)
        halves = array("Q")
        halves.frombytes(np.ascontiguousarray(keys[:, 0]).astype(np.uint64).tobytes())
        return halves
