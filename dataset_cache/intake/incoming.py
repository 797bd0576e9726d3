"""Incoming files: files that wait to be added to a folder of images, what each of them is, and which are not taken."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..sources import CHOICES, METADATA, SIDECARS, is_image, is_mask, name_problem

IMAGE, MASK, CAPTION, METADATA_FILE = "images", "masks", "captions", "metadata"
MASKS = "masks"  # the name of a folder of masks
MAX_FILE = 1 << 30  # bytes
_MAX_NAME = 220  # characters; leaves room for a number and for temporary names
_MAX_NAME_BYTES = 230
_MAX_DEPTH = 6
_ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".gz", ".tgz", ".bz2", ".xz")
# What systems put beside files; skipped without a word.
_DEBRIS = frozenset({"thumbs.db", "desktop.ini", "__macosx", "@eadir"})


@dataclass(frozen=True)
class Incoming:
    """A file at `path` that is to be added under `name`, relative to the folder, such as `sub/a.png`.

    `origin` is the number of its zip: files of different zips do not belong together.
    """

    path: Path
    name: str
    origin: int = 0

    @property
    def kind(self) -> str:
        return kind_of(self.name)

    @property
    def directory(self) -> str:
        return os.path.dirname(self.name)

    @property
    def stem(self) -> str:
        """The name that an image, its captions and its mask share."""
        stem = os.path.basename(self.name).rpartition(".")[0]
        return stem[: -len("-masklabel")] if is_mask(self.name) else stem


@dataclass(frozen=True)
class Skipped:
    """A file that was not added, and why."""

    name: str
    reason: str


def kind_of(name: str) -> str:
    """What a file is by its name; empty if folders of images have no use for it."""
    *folders, base = name.split("/")
    if base in (METADATA, CHOICES):
        return METADATA_FILE
    if is_image(base):
        return MASK if is_mask(base) or MASKS in folders else IMAGE
    return CAPTION if base.lower().endswith(SIDECARS) and base.rpartition(".")[0] else ""


def is_debris(name: str) -> bool:
    """Whether a system or a program put the file there, not the user."""
    parts = name.replace("\\", "/").split("/")
    return any(part.lower() in _DEBRIS or (part[:1] == "." and part != "..") for part in parts)


def refusal_of(name: str) -> str:
    """Why a file of this name is not taken; empty if it is."""
    parts = name.split("/")
    for part in parts:
        problem = name_problem(part, _MAX_NAME)
        if problem:
            return f"its name {problem}"
    if len(parts) > _MAX_DEPTH:
        return f"it is in {len(parts) - 1} folders inside each other; at most {_MAX_DEPTH - 1} are allowed"
    if any(len(part.encode()) > _MAX_NAME_BYTES for part in parts):
        return "its name is too long for a file system"
    if parts[-1].lower().endswith(_ARCHIVES):
        return "an archive inside the archive or folder; unpack it first"
    return "" if kind_of(name) else "not an image, a caption or a mask"


def size_refusal(size: int) -> str:
    return "" if size <= MAX_FILE else f"{size:,} bytes, expected at most {MAX_FILE:,}"
