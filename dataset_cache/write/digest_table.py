"""Numbers by digest, for millions of them: about 40 bytes each, where a dict takes 200."""

from array import array

_FIRST = 1 << 10  # slots


class DigestTable:
    """Open addressing in flat arrays. A slot has the number of a row plus one; 0 is free."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._values = array("Q")
        self._slots = array("I", bytes(4 * _FIRST))

    def __len__(self) -> int:
        return len(self._values)

    def get(self, digest: bytes) -> int | None:
        """The value of a digest of 16 bytes."""
        digests, slots, last = self._digests, self._slots, len(self._slots) - 1
        slot = hash(digest) & last
        while row := slots[slot]:
            if digests[16 * row - 16 : 16 * row] == digest:
                return self._values[row - 1]
            slot = slot + 1 & last
        return None

    def add(self, digest: bytes, value: int) -> None:
        """Add a digest that is not in the table."""
        self._digests += digest
        self._values.append(value)
        if 2 * len(self._values) > len(self._slots):
            self._grow()
        else:
            self._place(digest, len(self._values))

    def _grow(self) -> None:
        self._slots = array("I", bytes(4 * 4 * len(self._slots)))
        digests = bytes(self._digests)
        for row in range(1, len(self._values) + 1):
            self._place(digests[16 * row - 16 : 16 * row], row)

    def _place(self, digest: bytes, row: int) -> None:
        slots, last = self._slots, len(self._slots) - 1
        slot = hash(digest) & last
        while slots[slot]:
            slot = slot + 1 & last
        slots[slot] = row
