"""Survey: all sources of a plan as they are on disk now: first their listings, then their samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..errors import CacheError
from ..sources import (
    METADATA,
    SIDECARS,
    Counts,
    Excluded,
    Findings,
    FolderSource,
    Inventory,
    Listing,
    ListSource,
    Note,
    Source,
    State,
    Transform,
    bucket_sizes,
    collect_folder,
    collect_list,
    is_image,
    is_mask,
    take_inventory,
    walk_folder,
)
from .identity import digest_of
from .recipe import Planned, Recipe

_CODE = 2  # raise it when the same files and settings would give other samples


@dataclass
class Layout:
    """The samples of a dataset to be, and everything worth saying about the files that they come from."""

    samples: list[Planned] = field(default_factory=list)
    excluded: list[Excluded] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    settled: bool = True
    trusted: int = 0


class Survey:
    """Making one lists all folders. Nothing is opened until `lay_out`."""

    def __init__(self, sources: Sequence[Source], transform: Transform, trust: bool) -> None:
        self.sources = [s if s.transform else replace(s, transform=transform) for s in sources]
        self.trust = trust
        self.problems: list[Excluded] = []
        self._lists = {at: collect_list(s) for at, s in enumerate(self.sources) if isinstance(s, ListSource)}
        self._own: list[list[Listing]] = []
        self._masks: list[list[Listing]] = []
        for source in self.sources:
            own, masks = self._walk(source) if isinstance(source, FolderSource) else ([], [])
            self._own.append(own)
            self._masks.append(masks)

    def signature(self, recipe: Recipe) -> str:
        """Equal for two runs that would give the same dataset, as far as stamps can tell."""
        listings = [[x.directory, x.digest.hex()] for found in (*self._own, *self._masks) for x in found]
        described = [_describe(source, self._lists.get(at)) for at, source in enumerate(self.sources)]
        return digest_of([_CODE, SIDECARS, METADATA, recipe.identity, described, listings])

    def lay_out(
        self, state: State, counts: Counts, *, hash_new: bool, threads: int, check: Callable[[], None] = lambda: None
    ) -> Layout:
        """Read what changed, and work out all samples."""
        options = {"trust": self.trust, "threads": threads, "check": check}
        pictures = take_inventory(_distinct(self._own), state, counts, hash_new=hash_new, **options)
        masks = take_inventory(_distinct(self._masks), state, counts, hash_new=True, **options)
        layout = Layout(excluded=list(self.problems), settled=pictures.settled and masks.settled)
        layout.trusted = pictures.trusted + masks.trusted
        for at, source in enumerate(self.sources):
            _add(layout, source, self._lists.get(at) or self._collect(at, pictures, masks))
        return layout

    def _collect(self, at: int, pictures: Inventory, masks: Inventory) -> Findings:
        own = {listing.directory: pictures.folders[listing.directory] for listing in self._own[at]}
        parallel = {listing.directory: masks.folders[listing.directory] for listing in self._masks[at]}
        return collect_folder(self.sources[at], own, parallel)

    def _walk(self, source: FolderSource) -> tuple[list[Listing], list[Listing]]:
        mask_root = os.path.join(source.root, source.masks.folder)
        own, problems = walk_folder(source.root, source.recursive, skip=[mask_root], trust=self.trust)
        own, below = _part(own, source)
        if not any(is_image(name) and not is_mask(name) for listing in own for name in listing.names):
            raise CacheError(
                f"{source.root}: holds no picture; is the disk mounted, is the path right? Nothing was changed"
            )
        masks: list[Listing] = []
        if source.masks.parallel and os.path.isdir(mask_root):
            masks, more = walk_folder(mask_root, source.recursive, trust=self.trust)
            problems += more
        if source.masks.parallel:
            masks += below
        elif source.recursive:
            unasked = [mask_root] if os.path.isdir(mask_root) else []
            unasked += [listing.directory for listing in below]
            problems += (Excluded(path, "taken for a folder of masks, which are not asked for") for path in unasked)
        above = os.path.dirname(source.root)
        self.problems += [replace(p, source=os.path.relpath(p.source, above).replace(os.sep, "/")) for p in problems]
        return own, masks


def _add(layout: Layout, source: Source, found: Findings) -> None:
    layout.excluded += found.excluded
    layout.notes += found.notes
    for item in found.items:
        size = item.picture.width, item.picture.height
        targets = bucket_sizes(*size, source.transform)
        if not targets:
            step = source.transform.step
            layout.excluded.append(
                Excluded(item.name, f"{size[0]} × {size[1]} is less than one step ({step}), and it may not grow")
            )
        for part, target in enumerate(targets):
            layout.samples.append(Planned(item, part, target, size, item.picture.content, item.picture.alpha))


def _part(listings: list[Listing], source: FolderSource) -> tuple[list[Listing], list[Listing]]:
    """The folders of pictures, and those of masks that lie beside pictures further below (`subject/masks`)."""
    parts: tuple[list[Listing], list[Listing]] = ([], [])
    for listing in listings:
        names = os.path.relpath(listing.directory, source.root).split(os.sep)
        parts[source.masks.folder in names].append(listing)
    return parts


def _distinct(listings: list[list[Listing]]) -> list[Listing]:
    """Folders that several sources share are looked at once."""
    return list({listing.directory: listing for found in listings for listing in found}.values())


def _describe(source: Source, listed: Findings | None) -> list[object]:
    """Everything about a source that decides its samples."""
    if isinstance(source, FolderSource):
        return [source.describe(), source.root]
    return [source.describe(), [[i.name, i.captions, i.picture.content.hex()] for i in listed.items]]
