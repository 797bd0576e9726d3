"""The survey of a plan's sources: first their files as listed on disk now, then the samples they give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ...errors import CacheError
from ..sources import (
    METADATA,
    SIDECARS,
    Counts,
    Excluded,
    Findings,
    Folders,
    Inventory,
    Listing,
    Note,
    Source,
    SourceMemory,
    Transform,
    bucket_sizes,
    few_names,
    take_inventory,
)
from .identity import digest_of
from .recipe import Planned, Recipe

_CODE = 4  # raise it when the same files and settings would give other samples


@dataclass
class Layout:
    """The samples of a plan, and what was excluded or noticed. `settled` is False if files must be read again."""

    samples: list[Planned] = field(default_factory=list)
    excluded: list[Excluded] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    settled: bool = True
    trusted: int = 0


class Survey:
    """Creating a survey lists all sources. No file is opened until `lay_out`."""

    def __init__(
        self, sources: Sequence[Source], transform: Transform, trust: bool, allow_missing: bool = False
    ) -> None:
        self.sources = [s if s.transform else replace(s, transform=transform) for s in sources]
        self._transforms = [source.transform or transform for source in sources]
        self._trust = trust
        self._listed = [source.list(trust, allow_missing) for source in self.sources]

    def signature(self, recipe: Recipe) -> str:
        """Equal for two runs that would give the same dataset, as far as file stamps can show."""
        found = [*(listed.listings for listed in self._listed), *(listed.masks for listed in self._listed)]
        return self._digest(recipe, [[x.directory, x.digest.hex()] for group in found for x in group])

    def basis(self, recipe: Recipe) -> str:
        """Equal for two runs that would give the same dataset from the same files."""
        return self._digest(recipe, None)

    def _digest(self, recipe: Recipe, files: object) -> str:
        described = [[source.describe(), listed.identity] for source, listed in zip(self.sources, self._listed)]
        return digest_of([_CODE, SIDECARS, METADATA, recipe.identity, described, files])

    @property
    def listings(self) -> list[Listing]:
        """All folders of all sources, each once."""
        return _distinct([*(listed.listings for listed in self._listed), *(listed.masks for listed in self._listed)])

    @property
    def is_whole(self) -> bool:
        """Whether every source consists of folders, all of which could be listed, and without folders of masks."""
        return all(listed.listings and not listed.masks and not listed.problems for listed in self._listed)

    def lay_out_part(self, folders: Folders) -> Layout:
        """The samples of the files that are given, of all that were listed."""
        layout = Layout()
        for transform, listed in zip(self._transforms, self._listed):
            _add_samples(layout, transform, listed.items(folders, {}))
        return layout

    def lay_out(
        self,
        memory: SourceMemory,
        counts: Counts,
        *,
        hash_new: bool,
        threads: int,
        check: Callable[[], None] = lambda: None,
    ) -> Layout:
        """Read the files that changed, and work out all samples. `check` may raise to interrupt."""

        def take(listings: Iterable[Sequence[Listing]], hash_new: bool) -> Inventory:
            return take_inventory(
                _distinct(listings), memory, counts, hash_new=hash_new, trust=self._trust, threads=threads, check=check
            )

        files = take((listed.listings for listed in self._listed), hash_new)
        masks = take((listed.masks for listed in self._listed), True)
        layout = Layout(settled=files.settled and masks.settled, trusted=files.trusted + masks.trusted)
        layout.excluded += (problem for listed in self._listed for problem in listed.problems)
        for transform, listed in zip(self._transforms, self._listed):
            _add_samples(layout, transform, listed.items(files.folders, masks.folders))
        return layout


def refuse_bare_class_images(layout: Layout) -> None:
    """Refuse class images without a caption: training on empty ones would preserve nothing of the class."""
    prior = [s for s in layout.samples if s.item.source.prior and s.item.source.prompt is None]
    bare = [sample for sample in prior if not any(sample.item.captions)]
    if bare:
        names = few_names(list(dict.fromkeys(sample.name for sample in bare)))
        raise CacheError(
            f"{names}: no caption, which class images need; give the set {bare[0].item.source.set} a prompt (prompt, "
            '--class-prompt), such as "a dog", or add caption files'
        )


def _add_samples(layout: Layout, transform: Transform, found: Findings) -> None:
    layout.excluded += found.excluded
    layout.notes += found.notes
    for item in found.items:
        size = item.image.width, item.image.height
        targets = bucket_sizes(*size, transform)
        if not targets:
            reason = f"{size[0]}×{size[1]} is smaller than the step ({transform.step}), and upscaling is off"
            layout.excluded.append(Excluded(item.name, reason))
        for part, target in enumerate(targets):
            layout.samples.append(Planned(item, transform, part, target, size, item.image.content, item.image.alpha))


def _distinct(listings: Iterable[Sequence[Listing]]) -> list[Listing]:
    """Each folder once, even if several sources share it."""
    return list({listing.directory: listing for found in listings for listing in found}.values())
