"""The first look at a folder: its names at once, and each image when it is shown.

Reading all files of a folder with 100,000 images takes long; listing their names takes a moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import overload

from ..sources import UNSETTLED, Facts, FolderSource, ImageFiles, Listing, read_facts, stamp_of
from .source_folder import FolderImage, FolderView, ShownImages


class UnreadImages(Sequence[FolderImage]):
    """Images by their place. The files of one are read when it is asked for."""

    def __init__(self, shown: ShownImages, places: Sequence[Callable[[], ImageFiles]]) -> None:
        self._shown, self._places = shown, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> FolderImage: ...
    @overload
    def __getitem__(self, place: slice) -> list[FolderImage]: ...
    def __getitem__(self, place: int | slice) -> FolderImage | list[FolderImage]:
        if isinstance(place, slice):
            return [self._shown.image(files()) for files in self._places[place]]
        return self._shown.image(self._places[place]())


def look_first(source: FolderSource) -> FolderView:
    """A folder whose files are read when they are shown."""
    listed = source.list(trust=True, allow_missing=os.path.isdir(source.root))
    own, masks = (
        {listing.directory: _UnreadFiles(listing) for listing in some} for some in (listed.listings, listed.masks)
    )
    shown, later = ShownImages(source.root, _stamp), list(listed.later_images(own, masks))
    images = UnreadImages(shown, [read for _, _, read in later])
    names = [shown.name(directory, name) for directory, name, _ in later]
    return FolderView(Path(source.root), images, [(p.source, p.reason) for p in listed.problems], names)


class _UnreadFiles(Mapping[str, Facts]):
    """The files of one folder. What is in one is found out when it is asked for."""

    def __init__(self, listing: Listing) -> None:
        self._directory, self._names = listing.directory, dict.fromkeys(listing.names)
        self._known: dict[str, Facts] = {}

    def __getitem__(self, name: str) -> Facts:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._known:
            self._known[name] = read_facts(os.path.join(self._directory, name), False)[1]
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _stamp(directory: str, name: str) -> bytes:
    try:
        return stamp_of(os.stat(os.path.join(directory, name)))
    except OSError:  # its facts say why
        return UNSETTLED
