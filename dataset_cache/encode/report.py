"""Reports: what a plan will do, what a run did, and how far it is."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..sources import Counts, Excluded, Note
from .recipe import Planned

MADE_LISTED = 20  # entries that a printed report lists by name; the JSON has all


@dataclass(frozen=True, slots=True)
class Made:
    """An entry that is encoded, and why."""

    source: str
    field: str
    why: str


@dataclass(frozen=True)
class Progress:
    """How far a run is. `total` counts what this phase has to do, not what is reused."""

    phase: str
    done: int
    total: int
    seconds: float
    hits: int
    bytes: int

    @property
    def rate(self) -> float:
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        return (self.total - self.done) / self.rate if self.done else None


@dataclass
class Report:
    """What both kinds of report tell."""

    verb: ClassVar[str] = "to encode"
    samples: int = 0
    buckets: dict[str, int] = field(default_factory=dict)
    epoch: int = 0  # samples, each as often as it is repeated
    uncaptioned: int = 0
    unmasked: int = 0  # of sets that ask for masks
    made: list[Made] = field(default_factory=list)
    reused: dict[str, int] = field(default_factory=dict)
    excluded: list[Excluded] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    @property
    def encoded(self) -> dict[str, int]:
        """Entries by field."""
        return dict(Counter(entry.field for entry in self.made))

    @property
    def reasons(self) -> dict[str, dict[str, int]]:
        """Field → why → how many entries."""
        found: dict[str, dict[str, int]] = {}
        for (name, why), count in Counter((entry.field, entry.why) for entry in self.made).items():
            found.setdefault(name, {})[why] = count
        return found

    def count(self, samples: Collection[Planned]) -> None:
        """Tell of these samples."""
        self.samples, self.buckets = len(samples), bucket_counts(samples)
        self.epoch = sum(sample.item.repeats for sample in samples)
        self.uncaptioned = sum(not any(sample.item.captions) for sample in samples)
        self.unmasked = sum(sample.lacks_mask for sample in samples)

    def to_json(self) -> dict[str, Any]:
        plain = dataclasses.asdict(self)
        return {**plain, "encoded": self.encoded, "reasons": self.reasons}

    def lines(self) -> Iterator[str]:
        """The report as text."""
        yield f"{_counted(self.samples, 'sample')} in {_counted(len(self.buckets), 'bucket')}"
        yield from (f"  {size:>11}  {count:,}" for size, count in self.buckets.items())
        for name in sorted({*self.encoded, *self.reused}):
            whys = ", ".join(f"{count:,} {why}" for why, count in sorted(self.reasons.get(name, {}).items()))
            reused = self.reused.get(name, 0)
            encoded = f"{self.encoded.get(name, 0):,} {self.verb}{f' ({whys})' if whys else ''}"
            yield f"  {name}: {encoded}, {reused:,} reused"
        if self.epoch > self.samples:
            yield f"  {self.epoch:,} samples an epoch, with repeats"
        if self.uncaptioned:
            yield f"  {_counted(self.uncaptioned, 'sample has', 'samples have')} no caption"
        if self.unmasked:
            yield f"  {_counted(self.unmasked, 'sample has', 'samples have')} no mask, so all of the picture counts"
        # A first run makes everything; of a later one, people ask what it was that changed.
        if len(self.made) < min(self.samples, MADE_LISTED):
            yield from _listed(
                self.verb.capitalize(), ((m.source, f"{m.field}, {m.why}") for m in self.made), len(self.made)
            )
        yield from _listed("Excluded", ((e.source, e.reason) for e in self.excluded), len(self.excluded))
        yield from _listed("Noticed", ((n.source, n.text) for n in self.notes), len(self.notes))


@dataclass
class PlanReport(Report):
    """What encoding would do. `unread` pictures were never hashed: some may turn out to be known, or to be equal."""

    unread: int = 0
    bytes_expected: int | None = None  # None: the encoders do not say

    def lines(self) -> Iterator[str]:
        yield from super().lines()
        if self.unread:
            yield f"  {self.unread:,} pictures are new; equal ones among them are found when they are read"
        if self.bytes_expected is not None:
            yield f"  about {self.bytes_expected / 1e6:,.1f} MB to write"


@dataclass
class EncodeReport(Report):
    """What a run did."""

    verb: ClassVar[str] = "encoded"
    path: str = ""
    generation: str = ""
    unchanged: bool = False  # nothing to do, nothing written
    stopped: bool = False  # on request; what was encoded is kept for the next run
    trusted: int = 0  # files served as remembered, without looking at them
    bytes: int = 0
    seconds: float = 0.0
    counts: Counts = field(default_factory=Counts)

    @property
    def hits(self) -> int:
        return sum(self.reused.values())

    def as_reused(self) -> dict[str, Any]:
        """What a run that finds everything as this one left it reports."""
        reused = {name: self.reused.get(name, 0) + self.encoded.get(name, 0) for name in {*self.reused, *self.encoded}}
        kept = {"samples": self.samples, "buckets": self.buckets, "reused": reused}
        kept |= {"epoch": self.epoch, "uncaptioned": self.uncaptioned, "unmasked": self.unmasked}
        excluded = [dataclasses.asdict(e) for e in self.excluded]
        return {**kept, "excluded": excluded, "notes": [dataclasses.asdict(n) for n in self.notes]}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> EncodeReport:
        excluded = [Excluded(**e) for e in values["excluded"]]
        return cls(**{**values, "excluded": excluded, "notes": [Note(**n) for n in values["notes"]]})

    def lines(self) -> Iterator[str]:
        if self.stopped:
            yield f"Stopped: {_counted(len(self.made), 'entry', 'entries')} kept; run the same command again to go on"
        elif self.unchanged:
            yield f"Unchanged: {_counted(self.samples, 'sample')}, nothing to encode"
        else:
            encoded = _counted(len(self.made), "entry", "entries")
            yield f"Encoded {encoded}, reused {self.hits:,}, in {self.seconds:.1f} s"
        if self.trusted:
            yield f"  {self.trusted:,} files were trusted: changes made to them since are not in the dataset"
        yield from super().lines()


def bucket_counts(samples: Iterable[Planned]) -> dict[str, int]:
    """Samples by size, the fullest first."""
    counts = Counter(f"{sample.target[0]}×{sample.target[1]}" for sample in samples)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _counted(count: int, noun: str, several: str = "") -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {several or noun + 's'}"


def _listed(title: str, rows: Iterable[tuple[str, str]], count: int) -> Iterator[str]:
    if count:
        yield f"{title}: {count:,}"
    for at, (source, text) in enumerate(rows):
        if at == MADE_LISTED:
            yield f"  … and {count - at:,} more"
            return
        yield f"  {source}: {text}" if source else f"  {text}"
