"""The folders of images below ComfyUI's source folders: how many images and captions each has, and its first images.

Only names are read. What was found in a directory is remembered until the directory changes, so that a list of many
folders costs one look per directory.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..format import is_published
from ..sources import METADATA, SIDECARS, folded_form, is_image, is_mask
from .incoming import MASKS

MAX_FOLDERS = 500
_MAX_LOOKED = 2000  # folders, with images or without
MAX_DIRECTORIES = 2000  # per folder
COVERS = 4
_MAX_KNOWN = 20_000
_SETTLED_NS = 2_000_000_000  # the resolution of times on some file systems


@dataclass(frozen=True)
class ImageFolder:
    """A folder with images in it or below it. `covers` are its first images, relative to it."""

    name: str
    images: int
    captions: int
    metadata: bool
    covers: tuple[str, ...]
    modified: float


@dataclass(frozen=True)
class _Directory:
    """The names in one directory, in short."""

    modified: int
    images: int = 0
    captions: int = 0
    metadata: bool = False
    covers: tuple[str, ...] = ()
    below: tuple[str, ...] = ()


_known: dict[str, _Directory] = {}
_lock = threading.Lock()


def list_image_folders(roots: Mapping[str, Sequence[Path]], groups: Sequence[str] = ()) -> list[ImageFolder]:
    """The folders directly below the roots that contain images, at any depth. `groups` are folders, such as
    `input/datasets`, whose own folders are listed instead of themselves."""
    found = (describe_folder(path, name) for name, path in _folders(roots, groups))
    listed = itertools.islice((folder for folder in found if folder.images), MAX_FOLDERS)
    return sorted(listed, key=lambda folder: folder.name)


def describe_folder(path: Path, name: str) -> ImageFolder:
    images = captions = modified = 0
    metadata, covers = False, []
    for below, directory in _walk(path):
        images, captions = images + directory.images, captions + directory.captions
        metadata |= directory.metadata
        covers += [f"{below}/{cover}" if below else cover for cover in directory.covers][: COVERS - len(covers)]
        modified = max(modified, directory.modified)
    return ImageFolder(name, images, captions, metadata, tuple(covers), modified / 1e9)


def _folders(roots: Mapping[str, Sequence[Path]], groups: Sequence[str]) -> Iterator[tuple[str, Path]]:
    seen: set[str] = set()
    for label, below in roots.items():
        for root in below:
            for name in _look(root).below:
                whole = f"{label}/{name}"
                if whole in groups:
                    inner = ((f"{whole}/{each}", root / name / each) for each in _look(root / name).below)
                else:
                    inner = iter([(whole, root / name)])
                for each, path in inner:
                    if each not in seen and len(seen) < _MAX_LOOKED:
                        seen.add(each)
                        yield each, path


def _walk(top: Path) -> Iterator[tuple[str, _Directory]]:
    pending, count = [""], 0
    while pending and count < MAX_DIRECTORIES:
        below = pending.pop(0)
        path = top / below
        directory = _look(path)
        if below and is_published(path):  # a cache is never part of a source
            continue
        count += 1
        yield below, directory
        pending += [f"{below}/{name}" if below else name for name in directory.below if name != MASKS]


def _look(path: Path) -> _Directory:
    """What a directory contains; nothing if it cannot be listed. Links and hidden names are left out."""
    try:
        now, modified = time.time_ns(), os.stat(path).st_mtime_ns
        with _lock:
            known = _known.get(str(path))
        if known is not None and known.modified == modified:
            return known
        found = _list(path, modified)
    except OSError:
        return _Directory(0)
    if now - modified > _SETTLED_NS:  # else a file may be added without a visible change
        with _lock:
            while len(_known) >= _MAX_KNOWN:
                del _known[next(iter(_known))]
            _known[str(path)] = found
    return found


def _list(path: Path, modified: int) -> _Directory:
    names, below = [], []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name[0] == "." or not _is_nameable(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.name)
            else:
                names.append(entry.name)
    images = sorted(name for name in names if is_image(name) and not is_mask(name))
    texts = {folded_form(name.rpartition(".")[0]) for name in names if name.lower().endswith(SIDECARS)}
    captions = sum(folded_form(name.rpartition(".")[0]) in texts for name in images) if texts else 0
    return _Directory(modified, len(images), captions, METADATA in names, tuple(images[:COVERS]), tuple(sorted(below)))


def _is_nameable(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)
