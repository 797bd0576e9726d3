"""The files of one folder of a source: which caption, mask and choice belong to which image."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...errors import SourceUnreadable, Unusable
from . import captions as texts
from .choices import CHOICES, Choice, Choices, read_choices
from .images import format_of, is_image
from .masks import SUFFIX, fits, is_mask
from .names import AlikeNames, distance, few_names
from .source import Findings, Folders, ImageFiles, Item, Note, Source
from .source_files import Facts, FileImage, image_file


class Metadata:
    """The captions that the metadata.jsonl files of a source have, by the paths of images.

    Captions of missing images are noted if captions are `wanted`.
    """

    def __init__(self, root: str, folders: Folders, found: Findings, wanted: bool) -> None:
        self._captions: dict[str, list[str]] = {}
        self._broken: dict[str, Facts] = {}  # folder → what is wrong with its metadata.jsonl
        for directory, files in folders.items():
            facts = files.get(texts.METADATA)
            if facts is None:
                continue
            captions, problems, damaged = texts.read_metadata(facts.text or "")
            if facts.error or damaged:
                self._broken[directory] = facts if facts.error else replace(facts, error=damaged)
            label = f"{folder_label(root, directory)}/{texts.METADATA}"
            found.notes += (Note(label, problem) for problem in problems)
            self._captions |= {os.path.normpath(os.path.join(directory, n)): lines for n, lines in captions.items()}
        self._images = set()
        if self._captions:
            self._images = {
                os.path.join(d, name) for d, files in folders.items() for name in _to_train_on(_images(files))
            }
        self._alike = AlikeNames(self._captions, self._images)
        if self._alike.orphans and wanted:
            names = [os.path.relpath(path, root).replace(os.sep, "/") for path in self._alike.orphans]
            label = f"{folder_label(root, root)}/{texts.METADATA}"
            found.notes.append(Note(label, f"has captions of images that are not here: {few_names(names)}"))

    def refuse_broken(self, directory: str) -> None:
        """Refuse an image without a caption if its caption may be in a file that is unreadable or damaged."""
        inside = os.path.join(directory, "")
        above = [folder for folder in self._broken if inside.startswith(os.path.join(folder, ""))]
        for folder in sorted(above, key=len, reverse=True):
            _refuse_broken(self._broken[folder], f"its caption in {texts.METADATA}: ")

    def find(self, path: str) -> Iterator[tuple[int, list[str]]]:
        """Captions for an image, with how far the name is from the written one."""
        if self._captions:
            for name in self._alike.find(path):
                yield distance(path, name), self._captions[name]


class FolderFiles:
    """One folder of a source, with its caption and mask files by the image they belong to.

    `problem`: why none of its images can be used now.
    """

    def __init__(
        self,
        source: Source,
        label: str,
        directory: str,
        files: Mapping[str, Facts],
        found: Findings,
        metadata: Metadata,
        masks: Sequence[tuple[str, Mapping[str, Facts]]],
        problem: str = "",
    ) -> None:
        self.source, self.directory, self.files, self.found, self.metadata = source, directory, files, found, metadata
        self.label, self.problem = f"{label}/", problem
        self.repeats = source.repeats * texts.folder_repeats(os.path.basename(directory))
        images = _images(files)
        self.names = _to_train_on(images)
        self.stems = {_stem(name) for name in self.names}
        self.sidecars = {
            _lower_extension(n): n for n in files if texts.is_text(n) and n not in (texts.METADATA, CHOICES)
        }
        self.alike = AlikeNames({_stem(key) for key in self.sidecars}, self.stems)
        if source.prompt is None:
            orphans = [self._sidecars_of(stem) for stem in self.alike.orphans]
            self._note_orphans("caption", [name for names in orphans for name in names])
        self.mask_places: list[_MaskPlace] = []
        if source.masks.file:
            self._add_masks(directory, files, {_stem(n)[: -len(SUFFIX)]: n for n in reversed(images) if is_mask(n)})
        if source.masks.parallel:
            for place, inside in masks:
                self._add_masks(place, inside, {_stem(name): name for name in reversed(_images(inside))})

    def _add_masks(self, directory: str, files: Mapping[str, Facts], by_stem: Mapping[str, str]) -> None:
        place = _MaskPlace(directory, files, by_stem, AlikeNames(by_stem, self.stems))
        self.mask_places.append(place)
        self._note_orphans("mask", [by_stem[stem] for stem in place.alike.orphans])

    def _note_orphans(self, kind: str, names: list[str]) -> None:
        """Sidecars that no image uses are often misspelled."""
        if names:
            self.found.notes.append(Note(self.label, f"has {kind} files that belong to no image: {few_names(names)}"))

    def namesakes(self) -> Iterator[Note]:
        """Notes on images that differ only in their extension: both are used, and share a caption and a mask."""
        first: dict[str, str] = {}
        for name in self.names:
            before = first.setdefault(_stem(name), name)
            if before != name:
                yield Note(self.label + name, f"has the same name as {before}, so they share a caption")

    def choices(self) -> Choices:
        return read_choices(self.directory, self.files.get(CHOICES))

    def image(self, name: str, choice: Choice, problem: str) -> ImageFiles:
        facts, stem = self.files[name], _stem(name)
        sidecar, listed = self._caption(name, stem)
        lines, mask, problem = listed or [], None, problem or self.problem or facts.error
        try:
            lines = self._sidecar(sidecar, name) if sidecar else lines
            mask = self._mask(stem, facts) if facts.width else None  # a damaged image has no shape to compare
        except Unusable as error:
            problem = problem or str(error)
        return ImageFiles(self.directory, name, facts, sidecar, self.files.get(sidecar), lines, mask, choice, problem)

    def item(self, name: str, repeats: int = 1) -> Item:
        if self.problem:
            raise SourceUnreadable(self.problem)
        facts = self.files[name]
        _refuse_broken(facts)
        if facts.format and facts.format not in (format_of(name), "MPO"):
            self.found.notes.append(Note(self.label + name, f"is in fact a {facts.format} file"))
        stem = _stem(name)
        lines = self._lines(name, stem)
        captions = texts.caption_variants(lines, self.source.captions)
        self.found.triggers.add(lines, self.source.captions)
        image = image_file(facts, self.directory, name)
        return Item(self.source, self.label + name, image, captions, self._mask(stem, facts), self.repeats * repeats)

    def _lines(self, name: str, stem: str) -> list[str]:
        if self.source.prompt is not None:
            return [self.source.prompt]
        sidecar, listed = self._caption(name, stem)
        if sidecar:
            return self._sidecar(sidecar, self.label + name)
        if listed is not None:
            return listed
        self.metadata.refuse_broken(self.directory)
        if self.source.captions.fallback == "folder":
            return [texts.folder_words(os.path.basename(self.directory))]
        return [""]

    def _caption(self, name: str, stem: str) -> tuple[str, list[str] | None]:
        """The caption file that is used, or the caption in a metadata.jsonl, or neither."""
        sidecar = self.sidecars.get(stem + texts.SIDECARS[0])  # nearly always
        if sidecar is not None:
            return sidecar, None
        listed = list(self.metadata.find(os.path.join(self.directory, name)))
        for found in self.alike.find(stem):
            closer = [lines for away, lines in listed if away < distance(stem, found)]
            return ("", closer[0]) if closer else (self._sidecars_of(found)[0], None)
        return "", listed[0][1] if listed else None

    def _sidecars_of(self, stem: str) -> list[str]:
        """The caption files of this name; the first one is used."""
        return [self.sidecars[stem + suffix] for suffix in texts.SIDECARS if stem + suffix in self.sidecars]

    def _sidecar(self, sidecar: str, label: str) -> list[str]:
        facts = self.files[sidecar]
        _refuse_broken(facts, f"its caption {sidecar}: ")
        try:
            lines = texts.read_lines(sidecar, facts.text or "")
        except ValueError as error:
            raise Unusable(f"its caption {sidecar}: {error}") from None
        longest = max(map(len, lines))
        if longest > texts.LONG:
            self.found.notes.append(Note(label, f"its caption {sidecar} has {longest:,} characters"))
        return lines

    def _mask(self, stem: str, image: Facts) -> FileImage | None:
        for place in self.mask_places:
            for found in place.alike.find(stem):
                name = place.by_stem[found]
                return _checked_mask(place.files[name], place.directory, name, image)
        return None


class _MaskPlace(NamedTuple):
    """A folder with masks, by the names of the images that they belong to."""

    directory: str
    files: Mapping[str, Facts]
    by_stem: Mapping[str, str]
    alike: AlikeNames


def folder_label(root: str, directory: str) -> str:
    """A folder's name in the dataset: from the source's folder on, the same on every system."""
    below = os.path.relpath(directory, root).replace(os.sep, "/")
    name = os.path.basename(root) or "root"
    return name if below == "." else f"{name}/{below}"


def _images(files: Mapping[str, Facts]) -> list[str]:
    """The image files in order, masks too. If only one of two with the same stem can count, it is the first."""
    return sorted(name for name in files if is_image(name))


def _to_train_on(images: list[str]) -> list[str]:
    return [name for name in images if not is_mask(name)]


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _refuse_broken(facts: Facts, what: str = "") -> None:
    if facts.error:
        raise (SourceUnreadable if facts.unreadable else Unusable)(what + facts.error)


def _checked_mask(facts: Facts, directory: str, name: str, image: Facts) -> FileImage:
    _refuse_broken(facts, f"its mask {name}: ")
    if not fits((facts.width, facts.height), (image.width, image.height)):
        mask, whole = f"{facts.width}×{facts.height}", f"{image.width}×{image.height}"
        raise Unusable(f"its mask {name} is {mask}, but the image {whole}: the aspect ratios differ")
    return image_file(facts, directory, name)


def _lower_extension(name: str) -> str:
    stem, dot, extension = name.rpartition(".")
    return stem + dot + extension.lower()
