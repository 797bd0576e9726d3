"""Paths: the only place where text from a widget becomes a path. Whatever the text, the path stays below its roots."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...dataset_cache import BUILD, MANIFEST, CacheBusy, CacheError

MAX_PART = 120  # characters of one folder's name; a run's may have as many
MAX_PART_BYTES = 255  # what file systems take
MAX_DEPTH = 8
LISTED_DEPTH = 4  # folders below a root that are looked through for caches
MAX_LISTED = 2000
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f<>:"|?*]')
# Windows opens a device under these names in every folder, with any extension.
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])", re.IGNORECASE)


def parse_name(text: str) -> tuple[str, ...]:
    """The folders that a name such as `group/my_set` consists of. The same names are allowed on every system."""
    if not isinstance(text, str) or not text.strip():
        raise CacheError("the name is empty; give one such as my_set")
    parts = tuple(text.strip().replace("\\", "/").split("/"))
    if len(parts) > MAX_DEPTH:
        raise CacheError(f"the name {_shown(text)} has {len(parts)} parts, {MAX_DEPTH} are allowed")
    for part in parts:
        problem = _problem(part)
        if problem:
            raise CacheError(f"the name {_shown(text)} {problem}; use a plain name such as my_set or group/my_set")
    return parts


def contained(root: Path, parts: Sequence[str], text: str) -> Path:
    """The path of these parts below `root`, also after links are followed."""
    path = root.joinpath(*parts)
    real_root, real = os.path.realpath(root), os.path.realpath(path)
    # On Windows, commonpath of two drives raises; a path on another drive is not below the root.
    if os.path.splitdrive(real_root)[0] != os.path.splitdrive(real)[0] or (
        os.path.commonpath([real_root, real]) != real_root
    ):
        raise CacheError(f"the name {_shown(text)} leads out of {root} through a link; use a folder inside it")
    return path


def path_to_save(name: str, roots: Sequence[Path]) -> Path:
    """Where a cache of this name is written: where it is already, else below the first root."""
    parts = parse_name(name)
    path = _find(parts, roots, name) or contained(roots[0], parts, name)
    for above in list(path.parents)[: len(parts) - 1]:
        if (above / MANIFEST).is_file():
            raise CacheError(f"the name {_shown(name)} lies inside the dataset {above.name}; choose another name")
    if path.is_file():
        raise CacheError(f"the name {_shown(name)} is taken by a file; choose another name")
    if path.is_dir() and not _is_cache(path) and any(path.iterdir()):
        raise CacheError(f"the folder {_shown(name)} holds files that are no dataset's; choose another name")
    return path


def path_to_create(name: str, roots: Sequence[Path]) -> Path:
    """Where something new of this name goes: below the first root. Nothing may have the name yet below any of them."""
    path = path_to_save(name, roots)
    if os.path.lexists(path):
        raise CacheBusy(f"the name {_shown(name)} is taken; choose another name")
    return path


def path_to_open(name: str, roots: Sequence[Path]) -> Path:
    """Where the cache of this name is."""
    parts = parse_name(name)
    path = _find(parts, roots, name)
    if path is None:
        found = ", ".join(list_names(roots)[:8]) or "none"
        raise CacheError(f"there is no dataset {_shown(name)}; save it first, or choose one of: {found}")
    return path


def problem_of(name: str | None, resolve: Callable[[], Any]) -> bool | str:
    """Why a name cannot be used, as the host's validation takes it."""
    if name is not None:  # None: linked, so it is looked at when it is known
        try:
            resolve()
        except ValueError as error:  # the pack's own errors are kin of it
            return str(error)
    return True


def path_of_folder(name: str, roots: dict[str, Sequence[Path]]) -> Path:
    """A folder of sources. `input/cats` looks below that root only, `cats` below all of them, in order."""
    parts = parse_name(name)
    wanted = [(below, parts[1:]) for label, below in roots.items() if len(parts) > 1 and parts[0] == label]
    wanted += [(below, parts) for below in roots.values()]
    for below, rest in wanted:
        for root in below:
            path = contained(root, rest, name)
            if path.is_dir():
                return path
    places = ", ".join(str(root) for below in roots.values() for root in below)
    raise CacheError(f"there is no folder {_shown(name)}; put the images into a folder below one of: {places}")


def list_names(roots: Sequence[Path]) -> list[str]:
    """The names of all caches below the roots, sorted."""
    return sorted(list_caches(roots))


def list_caches(roots: Sequence[Path]) -> dict[str, Path]:
    """Where all caches below the roots are, by their names; of two of one name, the one that would be opened."""
    found: dict[str, Path] = {}
    for root in roots:
        for folder in _walk(root, LISTED_DEPTH, is_published):
            found.setdefault(folder.relative_to(root).as_posix(), folder)
            if len(found) >= MAX_LISTED:
                break
    return found


def list_folders(roots: dict[str, Sequence[Path]]) -> list[str]:
    """The folders that sources can be read from, each with its root's label."""
    found: set[str] = set()
    for label, below in roots.items():
        for root in below:
            for folder in _walk(root, LISTED_DEPTH, lambda path: False, every=True):
                found.add(f"{label}/{folder.relative_to(root).as_posix()}")
                if len(found) >= MAX_LISTED:
                    return sorted(found)
    return sorted(found)


def _problem(part: str) -> str:
    if part == "..":
        return "climbs out of its folder"
    if not part:
        return "is an absolute path or has an empty part"
    if _FORBIDDEN.search(part):
        return 'has a character that not every system allows (: < > " | ? * or a control character)'
    if part[0] == "." or part[-1] in ". " or part[0] == " ":
        return "has a part that begins or ends with a dot or a space"
    if _DEVICE.fullmatch(part.split(".")[0].strip()):
        return f"has the part {part!r}, which is a device on Windows"
    if len(part) > MAX_PART:
        return f"has a part of {len(part)} characters, {MAX_PART} are allowed"
    if not _is_text(part):
        return "is no valid Unicode"
    return "" if len(part.encode()) <= MAX_PART_BYTES else "has a part that is too long for a file system"


def _is_text(part: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in part)


def _find(parts: Sequence[str], roots: Sequence[Path], name: str) -> Path | None:
    paths = [contained(root, parts, name) for root in roots]
    return next((path for path in paths if _is_cache(path)), None)


def _is_cache(path: Path) -> bool:
    return is_published(path) or (path / BUILD).is_dir()


def is_published(path: Path) -> bool:
    return os.path.isfile(path / MANIFEST)  # False also where nobody may look


def _walk(root: Path, depth: int, stop: Callable[[Path], bool], every: bool = False) -> Iterator[Path]:
    """Folders below `root` where `stop` is true, or all of them; links are not followed, hidden ones not entered."""
    try:
        below = sorted(e.name for e in os.scandir(root) if e.is_dir(follow_symlinks=False) and e.name[0] != ".")
    except OSError:
        return
    for name in below:
        if stop(root / name):
            yield root / name
            continue
        if every:
            yield root / name
        if depth > 1:
            yield from _walk(root / name, depth - 1, stop, every)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")
