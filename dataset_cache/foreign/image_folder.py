"""The images that a trainer's cache was made from: their names, sizes and captions, as far as they are still there."""

import os
from collections.abc import Sequence
from pathlib import Path

from ...errors import CacheError, Unusable
from ..format import is_link, is_regular
from ..sources import EXTENSIONS, SIDECARS, decode_text, read_facts
from .files import read_whole

_SIDECAR_BYTES = 16 << 20
_TYPED = (*sorted(EXTENSIONS), *sorted(extension.upper() for extension in EXTENSIONS))


class ImageFolder:
    """A folder of images. Nothing outside of it is looked at, whatever path a cache names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def named(self, stem: str) -> str | None:
        """The name, relative to the folder, of the image whose name without extension is `stem`."""
        if not _is_inside(stem):
            return None
        names = (f"{stem}.{extension}" for extension in _TYPED)
        return next((name for name in names if is_regular(self.folder / name)), None)

    def matching(self, path: str) -> str | None:
        """The name, relative to the folder, of the image that another computer had at `path`: the longest end fits."""
        parts = [part for part in path.replace("\\", "/").split("/") if part]
        for start in range(len(parts)):
            name = "/".join(parts[start:])
            if _is_inside(name) and is_regular(self.folder / name):
                return name
        return None

    def size(self, name: str | None) -> tuple[int, int]:
        """Width and height of an image, upright; (0, 0) if it cannot be told."""
        if name is None:
            return 0, 0
        _, facts = read_facts(os.fspath(self.folder / name), False)
        return facts.width, facts.height

    def text(self, stem: str) -> str | None:
        """The text of the caption file of an image, as it is; None if it has none."""
        if not _is_inside(stem):
            return None
        for extension in SIDECARS:
            path = self.folder / f"{stem}{extension}"
            if extension != ".json" and is_regular(path):
                try:
                    return decode_text(path.name, read_whole(path, _SIDECAR_BYTES)).replace("\r\n", "\n")
                except (CacheError, Unusable):
                    return None
        return None


def stem_of(name: str) -> str:
    """A name without its extension."""
    head, dot, tail = name.rpartition(".")
    return head if dot and "/" not in tail else name


def walk_files(folder: Path, suffix: str) -> list[str]:
    """The names, relative to the folder, of the files below it that end so, in order. Links are not followed."""
    found: list[str] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_link(Path(place) / name))
        base = Path(place).relative_to(folder).as_posix()
        found += [name if base == "." else f"{base}/{name}" for name in sorted(names) if name.endswith(suffix)]
    return found


def first_line_of(text: str | None) -> Sequence[str]:
    """The caption of trainers that use the first line of a file."""
    line = (text or "").strip().split("\n")[0].strip()
    return (line,) if line else ()


def whole_text(text: str | None) -> Sequence[str]:
    return (text.strip(),) if text and text.strip() else ()


def _is_inside(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    return bool(name) and "\0" not in name and ":" not in name and not {"", ".", ".."} & set(parts)
