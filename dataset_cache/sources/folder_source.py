"""A source that is a folder of image files, with captions and masks next to them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

from ...errors import CacheError, SourceUnreadable, Unusable
from ...setting import declare
from .choices import CHOICES, Choices
from .folder_files import FolderFiles, Metadata, folder_label
from .images import is_image
from .masks import is_mask
from .names import AlikeNames, few_names, folded_form, normal_form
from .scan import walk_folder
from .source import Excluded, Findings, Folders, ImageFiles, Note, Source
from .source_files import Listing


@dataclass(frozen=True, kw_only=True)
class FolderSource(Source):
    """A folder of image files."""

    path: str | os.PathLike[str] = field(kw_only=False)
    recursive: bool = declare(True, "Include images in subfolders", "set")

    local: ClassVar[frozenset[str]] = frozenset({"path"})

    @property
    def root(self) -> str:
        return os.path.abspath(self.path)

    def list(self, trust: bool = False, allow_missing: bool = False) -> ListedFolder:
        label = folder_label(self.root, self.root)
        if allow_missing and not os.path.exists(self.root):
            return ListedFolder(self, [], [], [Excluded(label, "the source folder is missing")])
        mask_root = os.path.join(self.root, self.masks.folder)
        try:
            own, problems = walk_folder(self.root, self.recursive, skip=[mask_root], trust=trust)
        except SourceUnreadable:
            if not allow_missing:
                raise
            return ListedFolder(self, [], [], [Excluded(label, "the source folder cannot be listed", unreadable=True)])
        own, below = _part(own, self)
        if not any(is_image(name) and not is_mask(name) for listing in own for name in listing.names):
            if not allow_missing:
                raise CacheError(
                    f"{self.root}: contains no images; is the disk mounted and the path right? To encode without it: "
                    "--allow-missing (on Encode Dataset: allow_missing). Nothing was changed"
                )
            problems.append(Excluded(self.root, "the source folder contains no images"))
        masks: list[Listing] = []
        if self.masks.parallel and os.path.isdir(mask_root):
            masks, more = walk_folder(mask_root, self.recursive, trust=trust)
            problems += more
        if self.masks.parallel:
            masks += below
        elif self.recursive:
            skipped = [mask_root] if os.path.isdir(mask_root) else []
            skipped += [listing.directory for listing in below]
            problems += (Excluded(path, "a folder of masks, but masks are off") for path in skipped)
        unlisted = [problem.source for problem in problems if problem.unreadable]
        above = os.path.dirname(self.root)
        problems = [replace(p, source=os.path.relpath(p.source, above).replace(os.sep, "/")) for p in problems]
        return ListedFolder(self, own, masks, problems, unlisted)

    def covers(self, folder: str) -> bool:
        own, folder = normal_form(folder_label(self.root, self.root)), normal_form(folder)
        return folder == own or (self.recursive and folder.startswith(f"{own}/"))

    def is_at(self, path: str) -> bool:
        return os.path.realpath(path) == os.path.realpath(self.root)

    def describe(self) -> dict[str, object]:
        return {"folder": os.path.basename(self.root), **super().describe()}


class LaterImages(NamedTuple):
    """The images of one folder, read one by one. `damage`: what is wrong with the file of choices."""

    files: FolderFiles
    choices: Choices
    damage: str

    @property
    def directory(self) -> str:
        return self.files.directory

    @property
    def names(self) -> list[str]:
        return self.files.names

    def image(self, name: str) -> ImageFiles:
        return self.files.image(name, self.choices[name], self.damage)


@dataclass(frozen=True)
class ListedFolder:
    """The files of a folder source. Finding its items needs their facts."""

    source: FolderSource
    listings: Sequence[Listing]
    masks: Sequence[Listing]
    problems: Sequence[Excluded]
    unlisted: Sequence[str] = ()  # folders that cannot be listed now

    @property
    def identity(self) -> object:
        return self.source.root

    def items(self, files: Folders, masks: Folders) -> Findings:
        found = Findings()
        for folder in self._folders(files, masks, found):
            found.notes += folder.namesakes()
            choices = folder.choices()
            if orphans := choices.orphans(folder.names):
                found.notes.append(Note(folder.label + CHOICES, f"has images that are not here: {few_names(orphans)}"))
            for name in folder.names:
                if choices[name].excluded:
                    found.excluded.append(Excluded(folder.label + name, f"excluded in {CHOICES}", chosen=True))
                    continue
                try:
                    found.items.append(folder.item(name, choices[name].repeats))
                except Unusable as error:
                    unreadable = isinstance(error, SourceUnreadable)
                    found.excluded.append(Excluded(folder.label + name, str(error), unreadable))
        label = folder_label(self.source.root, self.source.root)
        found.notes += (Note(label, text) for text in found.triggers.notes(self.source.captions))
        return found

    def images(self, files: Folders, masks: Folders) -> Iterator[ImageFiles]:
        """All images, also those that are excluded or cannot be used. Damaged choices are a problem of each image."""
        return (folder.image(name) for folder in self.later(files, masks) for name in folder.names)

    def later(self, files: Folders, masks: Folders) -> Iterator[LaterImages]:
        """The images of each folder. Reading one needs the facts of its own files only."""
        for folder in self._folders(files, masks, Findings()):
            choices, damage = Choices(), ""
            try:
                choices = folder.choices()
            except CacheError as error:
                damage = str(error)
            yield LaterImages(folder, choices, damage)

    def _folders(self, files: Folders, masks: Folders, found: Findings) -> Iterator[FolderFiles]:
        source = self.source
        own = {listing.directory: files[listing.directory] for listing in self.listings}
        parallel = {listing.directory: masks[listing.directory] for listing in self.masks}
        expected = {directory: _mask_places(source, directory) for directory in own}
        alike = AlikeNames(parallel, {place for places in expected.values() for place in places})
        metadata = Metadata(source.root, own, found, wanted=source.prompt is None)
        for directory, facts in own.items():
            places = [next(alike.find(place), place) for place in expected[directory]]
            hidden = [place for place in places if source.masks.parallel and self._is_hidden(place)]
            problem = f"its mask: the folder {hidden[0]} cannot be listed" if hidden else ""
            parts = [(place, parallel.get(place, {})) for place in places]
            label = folder_label(source.root, directory)
            yield FolderFiles(source, label, directory, facts, found, metadata, parts, problem)

    def _is_hidden(self, place: str) -> bool:
        """Whether files in this folder may be there, but cannot be seen now."""
        return any(os.path.join(place, "").startswith(os.path.join(folder, "")) for folder in self.unlisted)


def _part(listings: list[Listing], source: FolderSource) -> tuple[list[Listing], list[Listing]]:
    """The folders of images, and the folders of masks next to images further down (`subject/masks`).

    A folder `Masks` has masks too, unless masks are off: then it has images.
    """
    form = folded_form if source.masks.parallel else normal_form
    parts: tuple[list[Listing], list[Listing]] = ([], [])
    for listing in listings:
        names = os.path.relpath(listing.directory, source.root).split(os.sep)
        parts[form(source.masks.folder) in map(form, names)].append(listing)
    return parts


def _mask_places(source: FolderSource, directory: str) -> list[str]:
    """The folders where the masks of a folder's images are, in the order of preference."""
    below = os.path.relpath(directory, source.root)
    places = [os.path.join(source.root, source.masks.folder, below), os.path.join(directory, source.masks.folder)]
    return list(dict.fromkeys(map(os.path.normpath, places)))
