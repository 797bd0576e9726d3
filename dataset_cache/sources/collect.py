"""Collect: the pictures of a source, each with its captions and its mask, in order; and what was left out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import Unusable
from . import captions as texts
from .images import format_of, is_image
from .masks import SUFFIX, fits, is_mask
from .pictures import FilePicture, MemoryPicture, picture_in_memory, picture_of
from .source import Excluded, FolderSource, ListSource, Note, Source
from .source_files import Facts

Folders = Mapping[str, Mapping[str, Facts]]  # folder → name → what the file holds


@dataclass(frozen=True, slots=True)
class Item:
    """One picture of a source, before it has a size."""

    source: Source
    name: str
    picture: FilePicture | MemoryPicture
    captions: tuple[str, ...]
    mask: FilePicture | None = None
    repeats: int = 1


@dataclass
class Findings:
    """What a source, or all of them, came to."""

    items: list[Item] = field(default_factory=list)
    excluded: list[Excluded] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


def collect_list(source: ListSource) -> Findings:
    found = Findings()
    for at, image in enumerate(source.images):
        name = source.names[at] if source.names else f"image-{at:05d}"
        text = source.texts[at if len(source.texts) > 1 else 0] if source.texts else ""
        lines = [source.prompt] if source.prompt is not None else texts.read_lines("text", text)
        captions = texts.caption_variants(lines, source.captions)
        found.items.append(Item(source, name, picture_in_memory(image, name), captions, None, source.repeats))
    return found


def collect_folder(source: FolderSource, folders: Folders, masks: Folders) -> Findings:
    """`folders` are the source's own, `masks` those that hold masks: parallel to its own, or beside the pictures."""
    found = Findings()
    metadata = dict(_read_metadata(source, folders, found))
    for directory, files in folders.items():
        below = os.path.relpath(directory, source.root)
        places = [os.path.join(source.root, source.masks.folder, below), os.path.join(directory, source.masks.folder)]
        places = list(dict.fromkeys(map(os.path.normpath, places)))
        folder = _Folder(source, directory, files, found, metadata, [(p, masks.get(p, {})) for p in places])
        names = sorted(n for n in files if is_image(n) and not is_mask(n))
        found.notes += _namesakes(folder.label, names)
        for name in names:
            try:
                found.items.append(folder.item(name))
            except Unusable as error:
                found.excluded.append(Excluded(folder.label + name, str(error)))
    return found


class _Folder:
    """One folder of a source, with its files by what they belong to."""

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
            self.found.notes.append(Note(self.label + name, f"is a {facts.format} file by its content"))
        stem = name.rpartition(".")[0]
        captions = texts.caption_variants(self._lines(name, stem), self.source.captions)
        picture = picture_of(facts, self.directory, name)
        return Item(self.source, self.label + name, picture, captions, self._mask(stem, facts), self.repeats)

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

    def _mask(self, stem: str, picture: Facts) -> FilePicture | None:
        for directory, files, stems, suffix in self.mask_places:
            name = stems.get(stem + suffix)
            if name is not None:
                return _checked_mask(files[name], directory, name, picture)
        return None


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
    """What a folder is called in the dataset: from the source's folder on, the same on every system."""
    below = os.path.relpath(directory, source.root).replace(os.sep, "/")
    name = os.path.basename(source.root) or "root"
    return name if below == "." else f"{name}/{below}"


def _namesakes(label: str, names: list[str]) -> Iterator[Note]:
    """Pictures that differ only in their extension: both are used, and share one caption and one mask."""
    first: dict[str, str] = {}
    for name in names:
        before = first.setdefault(name.rpartition(".")[0], name)
        if before != name:
            yield Note(label + name, f"has the same name as {before}, so both have the same caption")


def _stems(files: Mapping[str, Facts]) -> dict[str, str]:
    return {name.rpartition(".")[0]: name for name in sorted(files, reverse=True) if is_image(name)}


def _checked_mask(facts: Facts, directory: str, name: str, picture: Facts) -> FilePicture:
    if facts.error:
        raise Unusable(f"its mask {name}: {facts.error}")
    if not fits((facts.width, facts.height), (picture.width, picture.height)):
        mask, whole = f"{facts.width} × {facts.height}", f"{picture.width} × {picture.height}"
        raise Unusable(f"its mask {name} is {mask}, the picture {whole}: another shape")
    return picture_of(facts, directory, name)


def _lower_extension(name: str) -> str:
    stem, dot, extension = name.rpartition(".")
    return stem + dot + extension.lower()
