"""A source: where images and captions come from, and how to treat them. Each kind of source is a file of its own."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

from ...errors import CacheError
from ...setting import check_settings, declare
from .captions import Captions, TriggerCount
from .choices import Choice
from .masks import Masks
from .source_files import Facts, FileImage, Listing, SourceImage
from .transforms import Transform

Folders = Mapping[str, Mapping[str, Facts]]  # folder → name → facts of the file


@dataclass(frozen=True)
class Excluded:
    """A file or folder that is not in the dataset, and why.

    `unreadable`: it cannot be read now, but may be intact. `chosen`: the user excluded it.
    """

    source: str
    reason: str
    unreadable: bool = False
    chosen: bool = False


@dataclass(frozen=True)
class Note:
    """A remark about a file that is in the dataset."""

    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Item:
    """One image of a source, before it has a size."""

    source: Source
    name: str
    image: SourceImage
    captions: tuple[str, ...]
    mask: FileImage | None = None
    repeats: int = 1


class ImageFiles(NamedTuple):
    """An image of a folder with what belongs to it, whether it is used or not."""

    directory: str
    name: str
    facts: Facts
    sidecar: str  # the name of its caption file; "" if there is none
    caption: Facts | None  # of the caption file
    lines: list[str]  # of its caption, in that file or in a metadata.jsonl
    mask: FileImage | None
    choice: Choice
    problem: str


@dataclass
class Findings:
    """The items of a source, and what was excluded or noticed."""

    items: list[Item] = field(default_factory=list)
    excluded: list[Excluded] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    triggers: TriggerCount = field(default_factory=TriggerCount)


class Listed(Protocol):
    """A source as it is now. No file has been opened yet."""

    @property
    def listings(self) -> Sequence[Listing]:
        """Folders whose files must be read to know the items."""
        ...

    @property
    def masks(self) -> Sequence[Listing]:
        """Folders of masks, which are always hashed."""
        ...

    @property
    def problems(self) -> Sequence[Excluded]: ...

    @property
    def identity(self) -> object:
        """JSON that, with the settings and the listings, decides the items."""
        ...

    def items(self, files: Folders, masks: Folders) -> Findings:
        """The items, given the facts of all files in `listings` and `masks`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Source(abc.ABC):
    """What all sources have in common. Several sources may share a set if their settings of the set agree."""

    set: str = declare("main", "Name of the set; sets can have their own settings in training", "set")
    captions: Captions = field(default_factory=Captions)
    masks: Masks = field(default_factory=Masks)
    transform: Transform | None = None  # None: the plan's
    repeats: int = declare(
        1,
        "Repeats of each image per epoch. A folder named 10_subject multiplies it by 10",
        "set",
        low=1,
        high=2**32 - 1,
        shown=(1, 100_000),
    )
    weight: float = declare(1.0, "Loss weight of each sample", "set", low=0, shown=(0.0, 100.0), step=0.05)
    prior: bool = declare(False, "Class (regularization) images for prior preservation", "set")
    prompt: str | None = declare(
        None,
        "One caption for all images, instead of their caption files. Class images without caption files need one",
        "set",
    )
    samples: int | None = declare(
        None,
        "Number of images of this set to draw per epoch, different ones each time (0 = all)",
        "set",
        low=0,
        shown=(0, 10_000_000),
    )
    share: float | None = declare(None, "Share of this set to draw per epoch (0.5 = half)", "set", above=0)

    local: ClassVar[frozenset[str]] = frozenset()  # fields that say where on this machine the source is

    def __post_init__(self) -> None:
        if not self.set or not self.set.isprintable():
            raise CacheError(f"set: found the name {self.set!r}, expected printable text")
        check_settings(self)

    @abc.abstractmethod
    def list(self, trust: bool = False, allow_missing: bool = False) -> Listed:
        """Look at the source now. With `trust`, files are listed without checking whether they changed.

        A source without images is refused, unless `allow_missing`.
        """

    def covers(self, folder: str) -> bool:
        """Whether samples in this folder, as an earlier run named them, would come from this source."""
        return False

    def is_at(self, path: str) -> bool:
        """Whether the source is at this path, so that no cache may be written there."""
        return False

    def describe(self) -> dict[str, object]:
        """The source as recorded in the manifest: its settings, but not its place on this machine."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in self.local}
        parts = (Captions, Masks, Transform)
        return {name: dataclasses.asdict(v) if isinstance(v, parts) else v for name, v in values.items()}

    def facts(self) -> dict[str, object]:
        """What training needs to know about the set, under the names that training uses."""
        known = {"prior": self.prior, "prompt": self.prompt, "samples": self.samples, "weight": self.share}
        return {name: value for name, value in known.items() if value is not None}


def check_sets(sources: Sequence[Source]) -> None:
    """Refuse sources that share a set but disagree about it."""
    if not sources:
        raise CacheError("no sources; name at least one folder of images")
    facts: dict[str, dict[str, object]] = {}
    for source in sources:
        before = facts.setdefault(source.set, source.facts())
        if before != source.facts():
            raise CacheError(
                f"set {source.set}: described as {before} and as {source.facts()}; give the sources different set names"
            )
