"""Reports: what a plan would encode, what a run encoded and why, and the progress of a run."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...quantity import byte_count, plural
from ..sources import Counts, Excluded, Note, Origin, SourceMemory, few_names
from ..upkeep import size_label
from .recipe import Planned, Recipe

NEW = "new"
CONTENT_CHANGED = "content changed"
TRANSFORM_CHANGED = "transform changed"
ENCODER_CHANGED = "encoder changed"
MISSING_FIELD = "missing field"
NOT_IN_CACHE = "not in this cache"  # encoded by an earlier run, but since cleaned away or lost in a crash
_LISTED = 20  # lines per list in a printed report; the JSON has all

MissingEntry = tuple[Planned, str, bytes | None]  # sample, field, key; no key while the content is unknown


@dataclass(frozen=True, slots=True)
class Made:
    """An entry to encode or encoded, and why."""

    source: str
    field: str
    why: str


@dataclass(frozen=True)
class EncodeProgress:
    """The progress of a run. `total` counts the items that this phase encodes, without those reused."""

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
    """What both kinds of report contain."""

    verb: ClassVar[str] = "to encode"
    samples: int = 0
    buckets: dict[str, int] = field(default_factory=dict)
    epoch: int = 0  # samples per epoch, with repeats
    uncaptioned: int = 0
    unmasked: int = 0  # in sets with masks
    made: list[Made] = field(default_factory=list)
    reused: dict[str, int] = field(default_factory=dict)
    excluded: list[Excluded] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    cut: dict[str, str] = field(default_factory=dict)  # captions longer than their encoder takes: key → a sample
    removed: list[str] = field(default_factory=list)  # samples of the last generation that are gone
    missing: dict[str, int] = field(default_factory=dict)  # folders that had samples → how many

    @property
    def skipped(self) -> list[Excluded]:
        """Files that cannot be used."""
        return [e for e in self.excluded if not e.chosen]

    @property
    def chosen(self) -> list[Excluded]:
        """Images that the user excluded."""
        return [e for e in self.excluded if e.chosen]

    @property
    def encoded(self) -> dict[str, int]:
        """Entries by field."""
        return dict(Counter(entry.field for entry in self.made))

    @property
    def reasons(self) -> dict[str, dict[str, int]]:
        """Field → reason → number of entries."""
        found: dict[str, dict[str, int]] = {}
        for (name, why), count in Counter((entry.field, entry.why) for entry in self.made).items():
            found.setdefault(name, {})[why] = count
        return found

    def count(self, samples: Collection[Planned]) -> None:
        """Fill in the numbers of these samples."""
        self.samples, self.buckets = len(samples), _bucket_counts(samples)
        self.epoch = sum(sample.item.repeats for sample in samples)
        self.uncaptioned = sum(not any(sample.item.captions) for sample in samples)
        self.unmasked = sum(sample.lacks_mask for sample in samples)

    def to_json(self) -> dict[str, Any]:
        plain = dataclasses.asdict(self)
        return {**plain, "encoded": self.encoded, "reasons": self.reasons}

    def lines(self) -> Iterator[str]:
        """The report as text."""
        yield f"{plural(self.samples, 'sample')} in {plural(len(self.buckets), 'bucket')}"
        yield from (f"  {size:>11}  {count:,}" for size, count in self.buckets.items())
        for name in sorted({*self.encoded, *self.reused}):
            whys = ", ".join(f"{count:,} {why}" for why, count in sorted(self.reasons.get(name, {}).items()))
            reused = self.reused.get(name, 0)
            encoded = f"{self.encoded.get(name, 0):,} {self.verb}{f' ({whys})' if whys else ''}"
            yield f"  {name}: {encoded}, {reused:,} reused"
        if self.epoch > self.samples:
            yield f"  {self.epoch:,} samples per epoch, with repeats"
        if self.uncaptioned:
            yield f"  {plural(self.uncaptioned, 'sample')} without a caption"
        if self.unmasked:
            yield f"  {plural(self.unmasked, 'sample')} without a mask (the whole image is used)"
        if self.cut:
            yield f"  {cut_captions(self.cut)}"
        # A first run encodes everything; after a later one, people want to know what changed.
        if len(self.made) < min(self.samples, _LISTED):
            yield from _listed(
                self.verb.capitalize(), ((m.source, f"{m.field}, {m.why}") for m in self.made), len(self.made)
            )
        yield from _listed("No longer in the dataset", ((name, "") for name in self.removed), len(self.removed))
        missing = ((folder, f"{plural(count, 'sample')}, kept in the cache") for folder, count in self.missing.items())
        yield from _listed("Missing folders", missing, len(self.missing))
        yield from _listed("Excluded by choice", ((e.source, "") for e in self.chosen), len(self.chosen))
        yield from _listed("Skipped", ((e.source, e.reason) for e in self.skipped), len(self.skipped))
        yield from _listed("Notes", ((n.source, n.text) for n in self.notes), len(self.notes))


@dataclass
class PlanReport(Report):
    """What encoding would do. `unread` images were never hashed: some may turn out to be duplicates."""

    unread: int = 0
    bytes_expected: int | None = None  # None: unknown

    def lines(self) -> Iterator[str]:
        yield from super().lines()
        if self.unread:
            yield f"  {plural(self.unread, 'new image')}; duplicates are found when the images are read"
        if self.bytes_expected:
            yield f"  about {byte_count(self.bytes_expected)} to write"


@dataclass
class EncodeReport(Report):
    """What a run did."""

    verb: ClassVar[str] = "encoded"
    path: str = ""
    generation: str = ""
    unchanged: bool = False  # nothing to do, nothing written
    stopped: bool = False  # on request; encoded entries are kept for the next run
    trusted: int = 0  # files not checked for changes
    bytes: int = 0
    text_bytes: int = 0  # of the conditionings among them
    trimmed_bytes: int = 0  # of these, what was not stored because it can be restored
    seconds: float = 0.0
    counts: Counts = field(default_factory=Counts)

    @property
    def hits(self) -> int:
        return sum(self.reused.values())

    def as_reused(self) -> dict[str, Any]:
        """The report of a later run that finds nothing changed."""
        reused = {name: self.reused.get(name, 0) + self.encoded.get(name, 0) for name in {*self.reused, *self.encoded}}
        kept = {"samples": self.samples, "buckets": self.buckets, "reused": reused}
        kept |= {
            "missing": self.missing,
            "epoch": self.epoch,
            "uncaptioned": self.uncaptioned,
            "unmasked": self.unmasked,
            "cut": self.cut,
        }
        excluded = [dataclasses.asdict(e) for e in self.excluded]
        return {**kept, "excluded": excluded, "notes": [dataclasses.asdict(n) for n in self.notes]}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> EncodeReport:
        known = {f.name for f in dataclasses.fields(cls)}
        plain = {name: value for name, value in values.items() if name in known}
        excluded = [Excluded(**e) for e in values["excluded"]]
        return cls(**{**plain, "excluded": excluded, "notes": [Note(**n) for n in values["notes"]]})

    def lines(self) -> Iterator[str]:
        if self.stopped:
            yield f"Stopped: {plural(len(self.made), 'entry')} kept; run the command again to continue"
        elif self.unchanged:
            yield f"Unchanged: {plural(self.samples, 'sample')}, nothing to encode"
        else:
            encoded = plural(len(self.made), "entry")
            yield f"Encoded {encoded}, reused {self.hits:,}, in {self.seconds:.1f} s"
        if self.trusted:
            yield f"  {plural(self.trusted, 'file')} trusted: changes since the last check are not in the dataset"
        if self.trimmed_bytes:
            yield f"  {trimmed_text(self.trimmed_bytes, self.text_bytes)}"
        yield from super().lines()


def trimmed_text(trimmed: int, total: int) -> str:
    """What trimming has saved, of the conditionings' total size."""
    return f"padding of captions: {byte_count(trimmed)} of {byte_count(total)} not stored ({trimmed / total:.0%})"


def cut_captions(cut: Mapping[str, str]) -> str:
    """How many captions their encoder cuts, with examples."""
    names = few_names(list(dict.fromkeys(cut.values())))
    return f"{plural(len(cut), 'caption')} longer than the text encoder takes, which ignores the rest: {names}"


def explain(
    entries: Iterable[MissingEntry], recipe: Recipe, memory: SourceMemory, dropped: Mapping[bytes, str]
) -> list[Made]:
    """Why each entry is encoded: compares what it is made of now with what the memory has for its sample.

    `dropped` entries were removed by repair, for a known reason.
    """
    entries = list(entries)
    before = memory.origins({sample.origin for sample, _, _ in entries})
    return [
        Made(
            sample.name,
            name,
            (dropped.get(key) if key is not None else None) or _why(sample, name, before.get(sample.origin), recipe),
        )
        for sample, name, key in entries
    ]


def _why(sample: Planned, name: str, before: dict[str, Origin] | None, recipe: Recipe) -> str:
    if not before or not sample.content:
        return NEW
    now, then = recipe.origins(sample)[name], before.get(name)
    if then is None:
        return MISSING_FIELD
    if then.content != now.content:
        return CONTENT_CHANGED
    if then.encoder != now.encoder:
        return ENCODER_CHANGED
    return TRANSFORM_CHANGED if then.transform != now.transform else NOT_IN_CACHE


def _bucket_counts(samples: Iterable[Planned]) -> dict[str, int]:
    """Samples by size, most frequent first."""
    counts = Counter(size_label(*sample.target) for sample in samples)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _listed(title: str, rows: Iterable[tuple[str, str]], count: int) -> Iterator[str]:
    if count:
        yield f"{title}: {count:,}"
    for at, (source, text) in enumerate(rows):
        if at == _LISTED:
            yield f"  … and {count - at:,} more"
            return
        yield f"  {source}: {text}" if source and text else f"  {source or text}"
