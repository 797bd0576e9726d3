"""Reading many ranges of a remote file: the protocol of it, and which ranges are joined in one request."""

from collections.abc import Sequence
from typing import Protocol


class RangeReader(Protocol):
    """Reads parts of the files of one remote dataset, from any number of threads.

    Raises a CacheError with the place and a remedy. Faults that pass are retried within limits: no call takes more than
    60 seconds without progress.
    """

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each (offset, size), in the order of the ranges."""
        ...
