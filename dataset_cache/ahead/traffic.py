"""Traffic: what reading a remote dataset has cost so far."""

from dataclasses import asdict, dataclass

from ...quantity import byte_count, plural


@dataclass(frozen=True)
class Traffic:
    """Counts since the dataset was opened, by this process. A piece is what a sample, or a part of it, is read from."""

    requests: int = 0
    bytes: int = 0  # received
    fetched: int = 0  # pieces received
    hits: int = 0  # uses of pieces that were here already
    late: int = 0  # uses that waited for their piece
    evictions: int = 0
    lost: int = 0  # local copies that had vanished or were damaged, and were fetched again

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    def __str__(self) -> str:
        uses = self.hits + self.fetched
        parts = [
            f"{byte_count(self.bytes)} fetched in {plural(self.requests, 'request')}",
            f"{self.hits / uses:.0%} of {uses:,} reads from local copies" if uses else "no reads",
            f"{self.evictions:,} evicted",
        ]
        return ", ".join([*parts, *([f"{self.lost:,} damaged or lost and fetched again"] if self.lost else [])])
