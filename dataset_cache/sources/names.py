"""Names of files: which ones every system allows, and which ones mean the same file, in another Unicode form (macOS
writes é as two characters) or in another case."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

MAX_PART = 120  # characters per folder name, as for the name of a run
MAX_PART_BYTES = 255  # the limit of common file systems
_FEW = 5
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f<>:"|?*]')
# Windows opens a device under these names in every folder, with any extension.
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])", re.IGNORECASE)


def name_problem(part: str, most: int = MAX_PART) -> str:
    """Why some system does not allow a file or folder of this name; empty if all do."""
    if part == "..":
        return "leaves its folder"
    if not part:
        return "is an absolute path or has an empty part"
    if _FORBIDDEN.search(part):
        return 'contains a character that not every system allows (: < > " | ? * or a control character)'
    if part[0] == "." or part[-1] in ". " or part[0] == " ":
        return "has a part that starts or ends with a dot or a space"
    if _DEVICE.fullmatch(part.split(".")[0].strip()):
        return f"has the part {part!r}, which is a device name on Windows"
    if len(part) > most:
        return f"has a part with {len(part)} characters; at most {most} are allowed"
    if any("\ud800" <= character <= "\udfff" for character in part):
        return "is not valid Unicode"
    return "" if len(part.encode()) <= MAX_PART_BYTES else "has a part that is too long for a file system"


def normal_form(name: str) -> str:
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def folded_form(name: str) -> str:
    return normal_form(normal_form(name).casefold())


def distance(one: str, other: str) -> int:
    """0 for equal names, 1 for another Unicode form, 2 for another case."""
    return 0 if one == other else 1 if normal_form(one) == normal_form(other) else 2


def spelled(folder: Path, name: str) -> str:
    """A name as the folder has it: as written, else in another Unicode form, or in another case if the file system
    ignores cases. The name itself if nothing or more than one entry fits."""
    if name.isascii() and not os.path.lexists(folder / name.swapcase()):
        return name  # it has no other form, and cases are distinguished
    try:
        names = os.listdir(folder)
    except OSError:
        return name
    if name in names:
        return name
    same = [other for other in names if normal_form(other) == normal_form(name)]
    if not same and os.path.lexists(folder / name):
        same = [other for other in names if folded_form(other) == folded_form(name)]
    return same[0] if len(same) == 1 else name


def few_names(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _FEW:,} more" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more


class AlikeNames:
    """Finds the names of captions and masks for the names of images.

    A name fits as it is written; else in another Unicode form; else in another case, if exactly one image and one
    caption or mask are left for it. `orphans` fit no image.
    """

    def __init__(self, found: Collection[str], wanted: Collection[str]) -> None:
        self._found, self._normal, self._folded = found, {}, {}
        self.orphans: list[str] = []
        left = sorted(name for name in found if name not in wanted)
        if not left:
            return
        normal = {normal_form(name) for name in wanted}
        self._normal = {normal_form(name): name for name in left if normal_form(name) in normal}
        rest = [name for name in left if normal_form(name) not in normal]
        folded, alike = Counter(map(folded_form, wanted)), Counter(map(folded_form, rest))
        fitting = [name for name in rest if folded[folded_form(name)] == alike[folded_form(name)] == 1]
        self._folded = {folded_form(name): name for name in fitting}
        self.orphans = [name for name in rest if folded_form(name) not in self._folded]

    def find(self, name: str) -> Iterator[str]:
        """The names that fit this one, the closest first."""
        if name in self._found:
            yield name
        if self._normal and (same := self._normal.get(normal_form(name))) is not None:
            yield same
        if self._folded and (same := self._folded.get(folded_form(name))) is not None:
            yield same
