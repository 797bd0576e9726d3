"""A source that is a folder of image files, with captions and masks next to them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ..errors import CacheError, Unusable
from ..setting import declare
from . import captions as texts
from .images import format_of, is_image
from .masks import SUFFIX, fits, is_mask
from .scan import walk_folder
from .source import Excluded, Findings, Folders, Item, Note, Source
from .source_files import Facts, FileImage, Listing, image_file


@dataclass(frozen=True, kw_only=True)
class FolderSource(Source):
    """A folder of image files."""

    path: str | os.PathLike[str] = field(kw_only=False)
    recursive: bool = declare(True, "Include images in subfolders", "set")

    local: ClassVar[frozenset[str]] = frozenset({"path"})

    @property
    def root(self) -> str:
        return os.path.abspath(self.path)

    def list(self, trust: bool = False) -> ListedFolder:
        mask_root = os.path.join(self.root, self.masks.folder)
        own, problems = walk_folder(self.root, self.recursive, skip=[mask_root], trust=trust)
        own, below = _part(own, self)
        if not any(is_image(name) and not is_mask(name) for listing in own for name in listing.names):
            raise CacheError(
                f"{self.root}: contains no images; is the disk mounted and the path right? Nothing was changed"
            )
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
        above = os.path.dirname(self.root)
        problems = [replace(p, source=os.path.relpath(p.source, above).replace(os.sep, "/")) for p in problems]
        return ListedFolder(self, own, masks, problems)

    def is_at(self, path: str) -> bool:
        return os.path.realpath(path) == os.path.realpath(self.root)

    def describe(self) -> dict[str, object]:
        return {"folder": os.path.basename(self.root), **super().describe()}


@dataclass(frozen=True)
class ListedFolder:
    """The files of a folder source. Finding its items needs their facts."""

    source: FolderSource
    listings: Sequence[Listing]
    masks: Sequence[Listing]
    problems: Sequence[Excluded]

    @property
    def identity(self) -> object:
        return self.source.root

    def items(self, files: Folders, masks: Folders) -> Findings:
        source, found = self.source, Findings()
        own = {listing.directory: files[listing.directory] for listing in self.listings}
        parallel = {listing.directory: masks[listing.directory] for listing in self.masks}
        metadata = dict(_read_metadata(source, own, found))
        for directory, facts in own.items():
            below = os.path.relpath(directory, source.root)
            places = [
                os.path.join(source.root, source.masks.folder, below),
                os.path.join(directory, source.masks.folder),
            ]
            places = list(dict.fromkeys(map(os.path.normpath, places)))
            folder = _Folder(source, directory, facts, found, metadata, [(p, parallel.get(p, {})) for p in places])
            names = sorted(n for n in facts if is_image(n) and not is_mask(n))
            found.notes += _namesakes(folder.label, names)
            for name in names:
                try:
                    found.items.append(folder.item(name))
                except Unusable as error:
                    found.excluded.append(Excluded(folder.label + name, str(error)))
        return found


class _Folder:
    """One folder of a source, with its caption and mask files by the image they belong to."""

    def __init__(
        self,
        source: FolderSource,
        directory: str,
        files: Mapping[str, Facts],
        found: Findings,
        metadata: Mapping[str, list[str]],
        masks: Sequence[tuple[str, Mapping[str, Facts]]],
    ) -> None:
        self.source, self.directory, self.files, self.found, self.metadata = source, directory, files, found, metadata
        self.label = _label(source, directory) + "/"
        self.repeats = source.repeats * texts.folder_repeats(os.path.basename(directory))
        self.sidecars = {_lower_extension(name): name for name in files if texts.is_text(name)}
        self.mask_places = [(directory, files, _stems(files), SUFFIX)] if source.masks.file else []
        if source.masks.parallel:
            self.mask_places += ((place, files, _stems(files), "") for place, files in masks)

    def item(self, name: str) -> Item:
        facts = self.files[name]
        if facts.error:
            raise Unusable(facts.error)
        if facts.format and facts.format not in (format_of(name), "MPO"):
            self.found.notes.append(Note(self.label + name, f"is in fact a {facts.format} file"))
        stem = name.rpartition(".")[0]
        captions = texts.caption_variants(self._lines(name, stem), self.source.captions)
        image = image_file(facts, self.directory, name)
        return Item(self.source, self.label + name, image, captions, self._mask(stem, facts), self.repeats)

    def _lines(self, name: str, stem: str) -> list[str]:
        if self.source.prompt is not None:
            return [self.source.prompt]
        for suffix in texts.SIDECARS:
            sidecar = self.sidecars.get(stem + suffix)
            if sidecar is not None:
                return self._sidecar(sidecar, self.label + name)
        listed = self.metadata.get(os.path.join(self.directory, name))
        if listed is not None:
            return listed
        broken = self.files.get(texts.METADATA)
        if broken is not None and broken.error:
            raise Unusable(f"its caption in {texts.METADATA}: {broken.error}")
        if self.source.captions.fallback == "folder":
            return [texts.folder_words(os.path.basename(self.directory))]
        return [""]

    def _sidecar(self, sidecar: str, label: str) -> list[str]:
        facts = self.files[sidecar]
        if facts.error:
            raise Unusable(f"its caption {sidecar}: {facts.error}")
        try:
            lines = texts.read_lines(sidecar, facts.text or "")
        except ValueError as error:
            raise Unusable(f"its caption {sidecar}: {error}") from None
        longest = max(map(len, lines))
        if longest > texts.LONG:
            self.found.notes.append(Note(label, f"its caption {sidecar} has {longest:,} characters"))
        return lines

    def _mask(self, stem: str, image: Facts) -> FileImage | None:
        for directory, files, stems, suffix in self.mask_places:
            name = stems.get(stem + suffix)
            if name is not None:
                return _checked_mask(files[name], directory, name, image)
        return None


def _part(listings: list[Listing], source: FolderSource) -> tuple[list[Listing], list[Listing]]:
    """The folders of images, and the folders of masks next to images further down (`subject/masks`)."""
    parts: tuple[list[Listing], list[Listing]] = ([], [])
    for listing in listings:
        names = os.path.relpath(listing.directory, source.root).split(os.sep)
        parts[source.masks.folder in names].append(listing)
    return parts


def _read_metadata(source: FolderSource, folders: Folders, found: Findings) -> Iterator[tuple[str, list[str]]]:
    for directory, files in folders.items():
        facts = files.get(texts.METADATA)
        if facts is None or facts.error:
            continue
        captions, problems = texts.read_metadata(facts.text or "")
        label = f"{_label(source, directory)}/{texts.METADATA}"
        found.notes += (Note(label, problem) for problem in problems)
        yield from ((os.path.normpath(os.path.join(directory, name)), lines) for name, lines in captions.items())


def _label(source: FolderSource, directory: str) -> str:
    """A folder's name in the dataset: from the source's folder on, the same on every system."""
    below = os.path.relpath(directory, source.root).replace(os.sep, "/")
    name = os.path.basename(source.root) or "root"
    return name if below == "." else f"{name}/{below}"


def _namesakes(label: str, names: list[str]) -> Iterator[Note]:
    """Notes on images that differ only in their extension: both are used, and share a caption and a mask."""
    first: dict[str, str] = {}
    for name in names:
        before = first.setdefault(name.rpartition(".")[0], name)
        if before != name:
            yield Note(label + name, f"has the same name as {before}, so they share a caption")


def _stems(files: Mapping[str, Facts]) -> dict[str, str]:
    return {name.rpartition(".")[0]: name for name in sorted(files, reverse=True) if is_image(name)}


def _checked_mask(facts: Facts, directory: str, name: str, image: Facts) -> FileImage:
    if facts.error:
        raise Unusable(f"its mask {name}: {facts.error}")
    if not fits((facts.width, facts.height), (image.width, image.height)):
        mask, whole = f"{facts.width} × {facts.height}", f"{image.width} × {image.height}"
        raise Unusable(f"its mask {name} is {mask}, but the image {whole}: the aspect ratios differ")
    return image_file(facts, directory, name)


def _lower_extension(name: str) -> str:
    stem, dot, extension = name.rpartition(".")
    return stem + dot + extension.lower()
