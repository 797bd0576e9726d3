"""A folder of images as it is now: every image with its caption, its mask, and what the user chose for it."""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import xxhash
from PIL import Image

from ...errors import CacheError, Unusable
from ..local_folders import memory_folder
from ..sources import (
    SIDECARS,
    Counts,
    FileRecord,
    FolderSource,
    ImageFiles,
    Known,
    Masks,
    SourceMemory,
    decode_image,
    normal_form,
    read_bytes,
    take_inventory,
)
from .caption_file import CaptionText, plain_text

_JSON = ".json"
_Digest = list[tuple[str, bytes, bool]]
_protected: dict[str, str] = {}  # real path of a folder → why nothing in it is edited


@dataclass(frozen=True, slots=True)
class FolderImage:
    """One image. `name` is its path below the folder, with slashes; `lines` are the variants of its caption."""

    name: str
    width: int
    height: int
    bytes: int
    modified: int  # nanoseconds since 1970
    caption: CaptionText
    lines: tuple[str, ...]
    excluded: bool = False
    repeats: int = 1
    mask: str = ""  # its path below the folder
    problem: str = ""  # why the image is skipped
    stamp: bytes = b""  # of the image file
    alpha: bool = False  # whether the image has an alpha channel
    mask_stamp: bytes = b""  # of the mask file, or of the image if its alpha channel is the mask

    @property
    def masked(self) -> bool:
        """Whether it has a mask, if the masks of its set are `auto`."""
        return bool(self.mask) or self.alpha


@dataclass(frozen=True)
class FolderView:
    """The images of a folder when it was read, in the order in which they are encoded."""

    root: Path
    images: Sequence[FolderImage]
    problems: Sequence[tuple[str, str]]  # skipped files and folders, and why
    unread: Sequence[str] | None = None  # the names of images that are read when they are asked for

    @property
    def whole(self) -> bool:
        """Whether all images were read."""
        return self.unread is None

    @cached_property
    def _places(self) -> Mapping[str, int]:
        names = (image.name for image in self.images) if self.unread is None else self.unread
        return {normal_form(name): place for place, name in enumerate(names)}

    def find(self, name: str) -> FolderImage:
        place = self._places.get(normal_form(name))
        if place is None:
            raise CacheError(f"{name}: this image is not in {self.root}; was it moved or renamed?")
        return self.images[place]

    def picture(self, name: str, side: int = 0) -> Image.Image:
        """The image as it is on disk now, upright, in RGB over white; `side` limits its longer side (0 = no limit)."""
        try:
            rgb = decode_image(read_bytes(str(self.root / self.find(name).name))[1]).rgb
        except Unusable as error:
            raise CacheError(f"{name}: {error}") from None
        if side and max(rgb.size) > side:
            scale = side / max(rgb.size)
            size = max(1, round(rgb.width * scale)), max(1, round(rgb.height * scale))
            rgb = rgb.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
        return rgb


class SourceFolder:
    """A folder that can be read again and again: files that did not change are not opened. Safe to use from threads."""

    def __init__(self, path: str | os.PathLike[str], recursive: bool = True, masks: Masks | None = None) -> None:
        self._source = FolderSource(path, recursive=recursive, masks=masks or Masks("auto"))
        self._lock = threading.Lock()
        self._read: tuple[_Digest, FolderView] | None = None
        self._known: dict[str, dict[str, Known]] = {}

    @property
    def root(self) -> Path:
        return Path(self._source.root)

    @property
    def source(self) -> FolderSource:
        return self._source

    def read(self, progress: Callable[[int, int], None] = lambda done, total: None) -> FolderView:
        """The images as they are now. `progress` gets the number of files read and of all; it may raise to stop."""
        with self._lock:
            listed = self._source.list(allow_missing=os.path.isdir(self.root))
            listings = [*listed.listings, *listed.masks]
            digest = [(each.directory, each.digest, os.access(each.directory, os.W_OK)) for each in listings]
            if self._read is not None and self._read[0] == digest:
                return self._read[1]
            counts, total = Counts(), sum(len(listing.names) for listing in listings)

            def check() -> None:
                progress(counts.opened, total)

            with _Memory(self.root, self._known) as memory:
                files = take_inventory(list(listed.listings), memory, counts, hash_new=False, check=check)
                masks = take_inventory(list(listed.masks), memory, counts, hash_new=False, check=check)
            stamps = {listing.directory: dict(listing.rows()) for listing in listings}
            images = ShownImages(str(self.root), lambda directory, name: stamps[directory][name])
            found = [images.image(each) for each in listed.images(files.folders, masks.folders)]
            view = FolderView(self.root, found, [(p.source, p.reason) for p in listed.problems])
            self._read = (digest, view) if files.settled and masks.settled else None
            return view


def protect_folder(folder: str | os.PathLike[str], reason: str) -> None:
    """From now on nothing in this folder, or below it, is edited in this process."""
    _protected[os.path.realpath(folder)] = reason


def protection_of(folder: str | os.PathLike[str]) -> str:
    """Why nothing in this folder is edited; "" if it can be."""
    path = os.path.join(os.path.realpath(folder), "")
    return next((reason for above, reason in _protected.items() if path.startswith(os.path.join(above, ""))), "")


def folder_id(root: Path) -> str:
    """What names a folder in the local state."""
    return xxhash.xxh3_128_hexdigest(os.path.normcase(os.path.realpath(root)).encode("utf-8", "surrogatepass"))


class _Memory(SourceMemory):
    """The memory of a folder's files, also in this process: parsing 200,000 records takes seconds."""

    def __init__(self, root: Path, known: dict[str, dict[str, Known]]) -> None:
        super().__init__(memory_folder() / "folders" / f"{folder_id(root)}.sqlite")
        self._known = known

    def files(self, directory: str) -> dict[str, Known]:
        if directory not in self._known:
            self._known[directory] = super().files(directory)
        return self._known[directory]

    def remember_files(self, rows: Iterable[FileRecord]) -> None:
        rows = list(rows)
        super().remember_files(rows)
        for directory, name, stamp, facts in rows:
            self._known[directory][name] = stamp, facts

    def forget_files(self, directory: str, names: Iterable[str]) -> None:
        names = list(names)
        super().forget_files(directory, names)
        for name in names:
            del self._known[directory][name]


class ShownImages:
    """Makes images from their files. `stamp` returns that of a file, by folder and name."""

    def __init__(self, root: str, stamp: Callable[[str, str], bytes]) -> None:
        self._root, self._stamp = root, stamp
        self._below: dict[str, str] = {}
        self._read_only: dict[str, str] = {}

    def name(self, directory: str, name: str) -> str:
        return self._path_below(directory) + name

    def image(self, files: ImageFiles) -> FolderImage:
        facts, below = files.facts, self._path_below(files.directory)
        stamp = self._stamp(files.directory, files.name)
        size, modified = array("q", stamp)[:2]
        caption, lines = self._caption(files, below)
        return FolderImage(
            self.name(files.directory, files.name),
            facts.width,
            facts.height,
            size,
            modified,
            caption,
            lines,
            files.choice.excluded,
            files.choice.repeats,
            "" if files.mask is None else self.name(files.mask.directory, files.mask.name),
            files.problem,
            stamp,
            facts.alpha,
            self._stamp(files.mask.directory, files.mask.name) if files.mask else stamp if facts.alpha else b"",
        )

    def _caption(self, files: ImageFiles, below: str) -> tuple[CaptionText, tuple[str, ...]]:
        lines, facts = tuple(filter(None, files.lines)), files.caption
        locked = self._locked(files.directory)
        if facts is None:
            file = below + files.name.rpartition(".")[0] + SIDECARS[0]
            return CaptionText(file, "\n".join(lines), locked=locked), lines
        text = plain_text(facts.text or "")
        problem = "" if files.lines else facts.error or files.problem
        if files.sidecar.lower().endswith(_JSON):
            locked = locked or f"its caption is in {files.sidecar}; only .txt and .caption files can be edited"
            text = "\n".join(lines)
        return CaptionText(below + files.sidecar, text, facts.content.hex(), locked, problem), lines

    def _path_below(self, directory: str) -> str:
        if directory not in self._below:
            path = os.path.relpath(directory, self._root).replace(os.sep, "/")
            self._below[directory] = "" if path == "." else f"{path}/"
        return self._below[directory]

    def _locked(self, directory: str) -> str:
        if directory not in self._read_only:
            reason = "" if os.access(directory, os.W_OK) else f"the folder {directory} is read-only"
            self._read_only[directory] = protection_of(directory) or reason
        return self._read_only[directory]
