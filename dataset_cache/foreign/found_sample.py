"""A sample found in another trainer's cache, in ComfyUI's terms, and what a kind of such caches answers."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from ..index import SampleFacts


@dataclass(frozen=True)
class FoundSample:
    """Latents as ComfyUI's nodes make them (several: flips), masks for each or none, conditionings or none."""

    place: str  # the file that it comes from, for messages
    facts: SampleFacts
    latents: list[torch.Tensor]
    masks: list[torch.Tensor] = field(default_factory=list)
    conditionings: list[Any] = field(default_factory=list)
    without: str = ""  # why it has no conditioning


@dataclass(frozen=True)
class Skipped:
    """Something in a cache that is not imported, and why."""

    place: str
    reason: str

    def __str__(self) -> str:
        # Errors begin with the whole path of the file, which the place ends.
        at = self.reason.replace("\\", "/").find(f"{self.place}: ")
        reason = self.reason if at < 0 else self.reason[at + len(self.place) + 2 :]
        return f"{self.place}: {reason}"


class ForeignCache(Protocol):
    """A folder with the cache of another trainer."""

    kind: str  # as reports name it

    def __iter__(self) -> Iterator[FoundSample | Skipped]: ...


class Opener(Protocol):
    """Opens a folder as a cache of its kind, with the folder that has the images; None if it is of another kind."""

    def __call__(self, folder: Path, images: Path | None) -> ForeignCache | None: ...
