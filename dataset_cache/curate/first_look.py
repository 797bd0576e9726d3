"""The first look at a folder: its names at once, and each image when it is shown.

Reading all files of a folder with 100,000 images takes long; listing their names takes a moment.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import overload

from ..sources import UNSETTLED, Facts, FolderSource, LaterImages, Listing, read_facts, stamp_of
from .source_folder import FolderImage, FolderView, ShownImages


class UnreadImages(Sequence[FolderImage]):
    """Images by their place. The files of one are read when it is asked for."""

    def __init__(self, shown: ShownImages, folders: Sequence[LaterImages]) -> None:
        self._shown, self._folders = shown, folders
        self._ends = list(accumulate(len(folder.names) for folder in folders))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def names(self) -> list[str]:
        return [self._shown.name(folder.directory, name) for folder in self._folders for name in folder.names]

    @overload
    def __getitem__(self, place: int) -> FolderImage: ...
    @overload
    def __getitem__(self, place: slice) -> list[FolderImage]: ...
    def __getitem__(self, place: int | slice) -> FolderImage | list[FolderImage]:
        places = range(len(self))[place]
        return self._read(places) if isinstance(places, int) else [self._read(each) for each in places]

    def _read(self, place: int) -> FolderImage:
        number = bisect_right(self._ends, place)
        folder = self._folders[number]
        return self._shown.image(folder.image(folder.names[place - self._ends[number]]))  # counted from its end


def look_first(source: FolderSource) -> FolderView:
    """A folder whose files are read when they are shown."""
    listed = source.list(trust=True, allow_missing=os.path.isdir(source.root))
    own, masks = (
        {listing.directory: _UnreadFiles(listing) for listing in some} for some in (listed.listings, listed.masks)
    )
    images = UnreadImages(ShownImages(source.root, _stamp), list(listed.later(own, masks)))
    return FolderView(Path(source.root), images, [(p.source, p.reason) for p in listed.problems], images.names)


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
