"""Adding files to a folder of images: each image with its captions and mask, under names that are still free.

Files arrive complete: each is moved into the folder in one step, captions before their image. What has the name already
stays, unless the user chose to replace it.
"""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...errors import CacheError
from ..format import is_link
from ..sources import EXTENSIONS, SIDECARS, folded_form, is_image, normal_form, read_facts
from .incoming import CAPTION, IMAGE, MASK, MASKS, METADATA_FILE, Incoming, Skipped, refusal_of, size_refusal

KEEP_BOTH, SKIP, REPLACE = "keep_both", "skip", "replace"
IF_FILE_EXISTS = (KEEP_BOTH, SKIP, REPLACE)
_MAX_TRIES = 10_000
_ENDINGS = (*SIDECARS, *(f".{extension}" for extension in sorted(EXTENSIONS)))

Progress = Callable[[int], None]  # called with the bytes of the files that were just handled; may raise to stop


@dataclass
class Added:
    """What adding did. `same` files were there already."""

    images: int = 0
    captions: int = 0
    masks: int = 0
    metadata: int = 0
    same: int = 0
    renamed: int = 0
    replaced: int = 0
    skipped: list[Skipped] = field(default_factory=list)

    def skip(self, name: str, reason: str) -> None:
        self.skipped.append(Skipped(name, reason))


def add_files(files: Iterable[Incoming], folder: Path, if_exists: str, progress: Progress) -> Added:
    """Move the files into the folder, which is created if it is new. `if_exists`: what to do about different files of
    the same name."""
    adding = _Adding(folder, if_exists)
    usable = list(adding.usable(files, progress))
    existed = folder.is_dir()
    adding.stems = {_place(file) for file in usable if file.kind == IMAGE}
    try:
        for group in _grouped(usable):
            progress(0)
            adding.add(group)
    finally:
        if not existed:
            with suppress(OSError):  # it has files, or was not created
                folder.rmdir()
    return adding.added


class _Adding:
    def __init__(self, folder: Path, if_exists: str) -> None:
        self.folder, self.if_exists = folder, if_exists
        self.added = Added()
        self.stems: set[tuple[str, str]] = set()  # of images that come
        self._names: dict[str, dict[str, str]] = {}  # directory → folded name → name

    def usable(self, files: Iterable[Incoming], progress: Progress) -> Iterator[Incoming]:
        for file in files:
            reason = _problem(file)
            if reason:
                self.added.skip(file.name, reason)
            else:
                progress(file.path.stat().st_size)
                yield file

    def add(self, group: list[Incoming]) -> None:
        """Add an image with what belongs to it."""
        group = [file for file in group if not self._is_orphan(file)]
        new = [file for file in group if not self._is_same(file)]
        if self.if_exists == KEEP_BOTH and self._has_other_image(new):
            group = new = self._renamed(group)
        self.added.same += len(group) - len(new)
        images = [file for file in new if file.kind == IMAGE]
        if self.if_exists == SKIP and any(self._existing(file.name) for file in images):
            for file in new:
                self.added.skip(file.name, "a different file of this name exists")
            return
        # The image last: it never appears without its caption.
        for file in sorted(new, key=lambda file: file.kind == IMAGE):
            self._move(file)

    def _move(self, file: Incoming) -> None:
        existing = self._existing(file.name)
        if existing and self.if_exists != REPLACE:
            self.added.skip(file.name, "a different file of this name exists; choose Replace to use this one")
            return
        name = os.path.join(file.directory, existing or os.path.basename(file.name))
        target = self.folder / name
        try:
            _move_file(file.path, target, bool(existing))
        except FileExistsError:
            self.added.skip(file.name, "a file of this name has just been created")
            return
        except OSError as error:
            raise CacheError(f"{target}: cannot be written: {error.strerror or error}") from error
        self._listed(file.directory)[folded_form(os.path.basename(name))] = os.path.basename(name)
        setattr(self.added, file.kind, getattr(self.added, file.kind) + 1)
        self.added.replaced += bool(existing)

    def _is_orphan(self, file: Incoming) -> bool:
        """Whether a caption or mask fits no image, neither of these files nor in the folder."""
        if file.kind in (IMAGE, METADATA_FILE) or _place(file) in self.stems or MASKS in file.directory.split("/"):
            return False
        stem = folded_form(file.stem)
        if any(is_image(name) and folded_form(name.rpartition(".")[0]) == stem for name in self._alike(file)):
            return False
        self.added.skip(file.name, "no image has this name")
        return True

    def _has_other_image(self, new: list[Incoming]) -> bool:
        """Whether an image is new, and it or its captions would meet files of another image with the same stem."""
        images = [file for file in new if file.kind == IMAGE]
        if not images:
            return False
        if any(self._existing(file.name) for file in new):
            return True
        alike = list(self._alike(images[0]))
        return any(map(is_image, alike)) and any(name.lower().endswith(SIDECARS) for name in alike)

    def _renamed(self, group: list[Incoming]) -> list[Incoming]:
        """The group under a stem with a number that nothing has yet."""
        for number in range(2, _MAX_TRIES):
            named = [replace(file, name=_numbered(file, number)) for file in group]
            free = [file for file in named if not self._existing(file.name) and not any(self._alike(file))]
            if len(free) == len(named):
                self.added.renamed += sum(file.kind == IMAGE for file in group)
                return named
        raise CacheError(f"{group[0].name}: {_MAX_TRIES:,} files have this name; choose another folder")

    def _is_same(self, file: Incoming) -> bool:
        existing = self._existing(file.name)
        path = self.folder / file.directory / existing if existing else None
        return path is not None and path.is_file() and filecmp.cmp(path, file.path, shallow=False)

    def _existing(self, name: str) -> str | None:
        """The name that a file has in the folder, maybe in another case or Unicode form."""
        return self._listed(os.path.dirname(name)).get(folded_form(os.path.basename(name)))

    def _alike(self, file: Incoming) -> Iterator[str]:
        """The files in the folder that have the stem of this one."""
        names, stem = self._listed(file.directory), folded_form(file.stem)
        possible = (f"{stem}{ending}" for ending in _ENDINGS)
        return (names[name] for name in possible if name in names)

    def _listed(self, directory: str) -> dict[str, str]:
        if directory not in self._names:
            path = self.folder / directory
            for part in (path, *path.parents):
                if part == self.folder:
                    break
                if is_link(part):  # a file would land elsewhere
                    raise CacheError(f"{part}: is a link; add the images to the folder that it points to")
            names = os.listdir(path) if path.is_dir() else []
            self._names[directory] = {folded_form(name): name for name in names}
        return self._names[directory]


def _problem(file: Incoming) -> str:
    """Why a file is not added. Of an image only the header is read: encoding reports what is wrong with the rest."""
    reason = refusal_of(file.name)
    if reason:
        return reason
    try:
        size = file.path.stat().st_size
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    if size_refusal(size) or file.kind == METADATA_FILE:
        return size_refusal(size)
    return read_facts(str(file.path), whole=False)[1].error


def _grouped(files: list[Incoming]) -> list[list[Incoming]]:
    """Each image with its captions and masks from the same zip. Names that differ only in their case are apart."""
    groups: dict[tuple[int, str, str], list[Incoming]] = defaultdict(list)
    for file in files:
        alone = file.kind == METADATA_FILE
        directory = file.name if alone else _without_masks(file.directory)
        groups[(file.origin, directory, "" if alone else normal_form(file.stem))].append(file)
    return [groups[key] for key in sorted(groups)]


def _place(file: Incoming) -> tuple[str, str]:
    return _without_masks(file.directory), folded_form(file.stem)


def _without_masks(directory: str) -> str:
    return "/".join(part for part in directory.split("/") if part != MASKS)


def _numbered(file: Incoming, number: int) -> str:
    base = os.path.basename(file.name)
    rest = base[len(file.stem) :] if file.kind in (IMAGE, MASK, CAPTION) else base
    name = f"{file.stem} ({number}){rest}"
    return f"{file.directory}/{name}" if file.directory else name


def _move_file(path: Path, target: Path, replace_it: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _rename(path, target, replace_it)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # Another file system: under a hidden name until the copy is complete.
        copy = target.with_name(f".{path.parent.name}-{path.name}"[:200])
        try:
            shutil.copyfile(path, copy)
            _rename(copy, target, replace_it)
        finally:
            copy.unlink(missing_ok=True)
        path.unlink()


def _rename(path: Path, target: Path, replace_it: bool) -> None:
    """In one step. A file that another program has just created there is never overwritten, where links work."""
    if replace_it:
        os.replace(path, target)
        return
    try:
        os.link(path, target)
        path.unlink()
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise
        if os.path.lexists(target):  # a file system without links
            raise FileExistsError(errno.EEXIST, "exists", str(target)) from None
        os.rename(path, target)
