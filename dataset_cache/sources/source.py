"""Sources: where pictures and captions come from, and how a set of them is to be treated."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..errors import CacheError
from .captions import Captions
from .masks import Masks
from .transforms import Transform


@dataclass(frozen=True, kw_only=True)
class Source:
    """What all sources have in common. Several sources may fill one set if they describe it alike."""

    set: str = "main"
    captions: Captions = field(default_factory=Captions)
    masks: Masks = field(default_factory=Masks)
    transform: Transform | None = None  # None: as the plan says
    repeats: int = 1
    weight: float = 1.0  # how much each sample counts in the loss
    prior: bool = False  # a class set, for prior preservation
    prompt: str | None = None  # the one caption of all its pictures
    samples: int | None = None  # how many of its samples an epoch draws; None: all
    share: float | None = None  # the same as a share of the set

    def __post_init__(self) -> None:
        if not self.set or not self.set.isprintable():
            raise CacheError(f"set: found the name {self.set!r}, expected printable text")
        if self.repeats < 0 or self.repeats >= 1 << 32:
            raise CacheError(f"set {self.set}: repeats is {self.repeats}, expected a count")
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise CacheError(f"set {self.set}: weight is {self.weight}, expected 0 or more")

    def describe(self) -> dict[str, object]:
        """The source as the manifest tells of it: its settings, but not where on this machine it is."""
        skipped = ("path", "images", "texts", "names")
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in skipped}
        return {name: dataclasses.asdict(v) if dataclasses.is_dataclass(v) else v for name, v in values.items()}

    def facts(self) -> dict[str, object]:
        """What training needs to know about the set, under the names that it uses."""
        known = {"prior": self.prior, "prompt": self.prompt, "samples": self.samples, "weight": self.share}
        return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class FolderSource(Source):
    """A folder of picture files, with captions and masks beside them."""

    path: str | os.PathLike[str] = field(kw_only=False)
    recursive: bool = True

    @property
    def root(self) -> str:
        return os.path.abspath(self.path)

    def describe(self) -> dict[str, object]:
        return {"folder": os.path.basename(self.root), **super().describe()}


@dataclass(frozen=True, kw_only=True, eq=False)
class ListSource(Source):
    """Pictures in memory, as the host's nodes hand them over: float tensors [H, W, C] or [1, H, W, C] in 0…1.

    One text serves all pictures; otherwise there are as many texts as pictures.
    """

    images: Sequence[torch.Tensor] = field(kw_only=False)
    texts: Sequence[str] = field(default=(), kw_only=False)
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for what, values in (("texts", self.texts), ("names", self.names)):
            if len(values) not in ((0, 1, len(self.images)) if what == "texts" else (0, len(self.images))):
                raise CacheError(
                    f"set {self.set}: {len(values)} {what} for {len(self.images)} images; give one for each image"
                )


def check_sets(sources: Sequence[Source]) -> None:
    """Sources of one set must not contradict each other about it."""
    if not sources:
        raise CacheError("no source was given; name at least one folder of images")
    facts: dict[str, dict[str, object]] = {}
    for source in sources:
        before = facts.setdefault(source.set, source.facts())
        if before != source.facts():
            raise CacheError(
                f"set {source.set}: described as {before} and as {source.facts()}; give the sources different set names"
            )


@dataclass(frozen=True)
class Excluded:
    """A file that is not in the dataset, and why."""

    source: str
    reason: str


@dataclass(frozen=True)
class Note:
    """Something worth knowing about a file that is in the dataset all the same."""

    source: str
    text: str
