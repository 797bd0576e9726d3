"""Names from widgets as paths below their roots, and the lists of names that widgets offer.

This is the only place where text from a widget becomes a path. Whatever the text, the path stays below its roots.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...dataset_cache import (
    Address,
    CacheBusy,
    CacheError,
    has_build,
    is_address,
    is_long_name,
    is_published,
    name_problem,
    resolve,
    spelled,
    storage_at,
    travel,
)
from ...dataset_cache import roots as registered_roots

MAX_DEPTH = 8
INPUT, DATASETS = "input", "datasets"  # the label of ComfyUI's input folder; where new folders of images go in it
INSIDE = "use a folder inside it"
_ALLOW = INSIDE + ", or list the folder that contains the linked one in extra_model_paths.yaml under "
_ALLOW_IMAGES, _ALLOW_CACHES = _ALLOW + DATASETS, _ALLOW + "streamcache"
LISTED_DEPTH = 4  # levels below a root that are searched for caches
MAX_LISTED = 2000
FRESH_SECONDS = 1.0
PATIENCE_SECONDS = 0.2


class Choices:
    """The names that `find` returns, as the choices of a widget.

    They are searched in a thread: ComfyUI asks for a node's definition at every prompt and must not wait for a disk.
    """

    def __init__(self, find: Callable[[], list[str]]) -> None:
        self._find = find
        self._names: list[str] = []
        self._found_at = float("-inf")
        self._search: threading.Thread | None = None
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """The result of the last search. A slow search shows up in a later call."""
        with self._lock:
            if self._search is None and time.monotonic() - self._found_at > FRESH_SECONDS:
                self._search = threading.Thread(target=self._run, name="streamcache listing", daemon=True)
                self._search.start()
            search = self._search
        if search is not None:
            search.join(PATIENCE_SECONDS)
        return list(self._names)

    def _run(self) -> None:
        try:
            self._names = self._find()
        finally:
            with self._lock:
                self._found_at, self._search = time.monotonic(), None


def parse_name(text: str) -> tuple[str, ...]:
    """The parts of a name such as `group/my_set`. The same names are allowed on every system."""
    if not isinstance(text, str) or not text.strip():
        raise CacheError("the name is empty; enter one, such as my_set")
    if is_address(text.strip()):
        raise CacheError(
            f"{_shown(text)} is an address, which no workflow may name; register it in remotes.toml as a root, and use "
            "that root's name"
        )
    parts = tuple(text.strip().replace("\\", "/").split("/"))
    if len(parts) > MAX_DEPTH:
        raise CacheError(f"the name {_shown(text)} has {len(parts)} parts; at most {MAX_DEPTH} are allowed")
    for part in parts:
        problem = name_problem(part)
        if problem:
            raise CacheError(f"the name {_shown(text)} {problem}; use a plain name such as my_set or group/my_set")
    return parts


def contained(root: Path, parts: Sequence[str], text: str, remedy: str = INSIDE) -> Path:
    """The path of these parts below `root`. It must be below `root` even after links are followed."""
    path = root.joinpath(*parts)
    real_root, real = os.path.realpath(root), os.path.realpath(path)
    # On Windows, commonpath raises for two drives; a path on another drive is not below the root.
    if os.path.splitdrive(real_root)[0] != os.path.splitdrive(real)[0] or (
        os.path.commonpath([real_root, real]) != real_root
    ):
        raise CacheError(f"the name {_shown(text)} leads out of {root} through a link; {remedy}")
    return path


def path_to_save(name: str, roots: Sequence[Path]) -> Path:
    """Where a cache of this name is written: its current place, or below the first root if it is new."""
    parts = parse_name(name)
    path = _find(parts, roots, name)
    if path is None:
        path = _place(roots[0], parts, name)
        if any(map(is_long_name, parts)):  # only new names: a cache that has one can still be opened
            raise CacheError(f"the name {_shown(name)} is too long for a file system; choose a shorter one")
    for above in list(path.parents)[: len(parts) - 1]:
        if is_published(above):
            raise CacheError(f"the name {_shown(name)} is inside the cache {above.name}; choose another name")
    if path.is_file():
        raise CacheError(f"the name {_shown(name)} is taken by a file; choose another name")
    if not _is_cache(path) and storage_at(path).list("") and travel.unfinished_in(path) is None:
        raise CacheError(f"the folder {_shown(name)} contains files that do not belong to a cache; choose another name")
    return path


def path_to_create(name: str, roots: Sequence[Path]) -> Path:
    """Where a new cache of this name goes: below the first root. The name must be free below all roots."""
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
        raise CacheError(f"cache {_shown(name)} not found; save it first, or choose one of: {found}")
    return path


def place_to_open(name: str, roots: Sequence[Path]) -> Path | Address:
    """Where the cache of this name is: below a root, or at a registered one as `studio/my_set`.

    One that was pulled from there has the same name, and is opened instead.
    """
    parts = parse_name(name)
    # The roots are read last: a mistake in their list disturbs no local cache.
    if len(parts) > 1 and _find(parts, roots, name) is None and parts[0] in registered_roots():
        return remote_place(name)
    return path_to_open(name, roots)


def remote_place(name: str) -> Address:
    """The place of `studio/my_set` at the registered root `studio`. No text becomes an address in another way."""
    parts, known = parse_name(name), registered_roots()
    if parts[0] not in known:
        listed = ", ".join(sorted(known)) or "none"
        raise CacheError(f"{_shown(parts[0])} is not a registered root; choose one of: {listed}")
    if len(parts) == 1:
        raise CacheError(f"the name {_shown(name)} is that of a root; add the name of a cache, as in {name}/my_set")
    return Address.parse(resolve("/".join(parts)))


def problem_of(name: str | None, resolve: Callable[[str], Any]) -> bool | str:
    """True if the name can be used, otherwise the reason, as ComfyUI's validation expects it."""
    if name is not None:  # None: linked, so the value is checked when it is known
        try:
            resolve(name)
        except ValueError as error:  # the base of the pack's own errors
            return str(error)
    return True


def path_of_folder(name: str, roots: Mapping[str, Sequence[Path]]) -> Path:
    """A folder of images. `input/cats` is searched below that root only, `cats` below all of them in order."""
    parts = parse_name(name)
    wanted = [(below, parts[1:]) for label, below in roots.items() if len(parts) > 1 and parts[0] == label]
    wanted += [(below, parts) for below in roots.values()]
    for below, rest in wanted:
        for root in below:
            path = _place(root, rest, name, _ALLOW_IMAGES)
            if path.is_dir():
                return path
    places = ", ".join(str(root) for below in roots.values() for root in below)
    raise CacheError(
        f"folder {_shown(name)} not found; put the images into a folder below one of: {places}. Further places are "
        "listed in extra_model_paths.yaml under datasets"
    )


def path_of_new_folder(name: str, root: Path) -> tuple[str, Path]:
    """Where images are added: `input/cats` is that folder below `root`, `cats` stands for `input/datasets/cats`.

    The folder may exist. Returns its name as lists show it, and its path.
    """
    parts = parse_name(name)
    parts = parts if parts[0] == INPUT and len(parts) > 1 else (INPUT, DATASETS, *parts)
    path = contained(root, parts[1:], name)
    taken = [above for above in (path, *path.parents) if root in above.parents and os.path.lexists(above)]
    if taken and not taken[0].is_dir():
        raise CacheError(f"the name {_shown(name)} is taken by a file; choose another name")
    if any(map(is_long_name, parts)):
        raise CacheError(f"the name {_shown(name)} is too long for a file system; choose a shorter one")
    for above in taken:
        if is_published(above):
            raise CacheError(f"the name {_shown(name)} is inside the cache {above.name}; choose another name")
    return "/".join(parts), path


def list_names(roots: Sequence[Path]) -> list[str]:
    """The names of all caches below the roots, sorted."""
    return sorted(list_caches(roots))


def list_caches(roots: Sequence[Path]) -> dict[str, Path]:
    """Name → path of all caches below the roots. If two have the same name, the one that would be opened."""
    found: dict[str, Path] = {}
    for root in roots:
        for folder in _walk(root, LISTED_DEPTH, is_published):
            found.setdefault(folder.relative_to(root).as_posix(), folder)
            if len(found) >= MAX_LISTED:
                break
    return found


def list_folders(roots: Mapping[str, Sequence[Path]]) -> list[str]:
    """The folders that images can be read from, each with the label of its root."""
    found: set[str] = set()
    for label, below in roots.items():
        for root in below:
            for folder in _walk(root, LISTED_DEPTH, lambda path: False, every=True):
                found.add(f"{label}/{folder.relative_to(root).as_posix()}")
                if len(found) >= MAX_LISTED:
                    return sorted(found)
    return sorted(found)


def _find(parts: Sequence[str], roots: Sequence[Path], name: str) -> Path | None:
    paths = [_place(root, parts, name) for root in roots]
    return next((path for path in paths if _is_cache(path)), None)


def _place(root: Path, parts: Sequence[str], name: str, remedy: str = _ALLOW_CACHES) -> Path:
    """The path of a name, as the folders on disk are spelled: systems write accents in different Unicode forms."""
    place = root
    for part in parts:
        contained(root, place.relative_to(root).parts, name, remedy)  # before it is listed
        place /= spelled(place, part)
    return contained(root, place.relative_to(root).parts, name, remedy)


def _is_cache(path: Path) -> bool:
    return is_published(path) or has_build(path)


def _walk(root: Path, depth: int, stop: Callable[[Path], bool], every: bool = False) -> Iterator[Path]:
    """Folders below `root` for which `stop` is true, or all of them. Links and hidden folders are skipped."""
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
