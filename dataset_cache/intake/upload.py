"""An upload: files and zips that arrive in a hidden folder before they are added to a folder of images.

The hidden folder is next to the folders of images, so that complete files are moved and not copied. ComfyUI's own
upload route stores single files in it, as `files/sub/000012-a.png`: a number keeps names apart that are the same on
some systems. A page that is closed leaves the folder behind; a later upload removes it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from ...errors import CacheError
from ...quantity import byte_count
from ..format import is_link
from .adding import Added, add_files
from .archive import Archive
from .incoming import Incoming

UPLOAD_ID = r"^[0-9a-f]{16}$"
MAX_ZIPS = 100
FILES = "files"
_PREFIX = ".adding-"
_NUMBERED = re.compile(r"[0-9]+-(.+)", re.DOTALL)
_ABANDONED_SECONDS = 24 * 3600
_RESERVE = 64 << 20  # bytes that stay free on the disk

Watch = Callable[[int, int], None]  # bytes done and in total; may raise to stop


class Upload:
    """The hidden folder of one upload below `root`, by its id."""

    def __init__(self, root: Path, number: str) -> None:
        if not re.fullmatch(UPLOAD_ID, number):
            raise CacheError("this is not the id of an upload")
        self.id = number
        self.folder = root / f"{_PREFIX}{number}"

    @classmethod
    def begin(cls, root: Path, expected: int) -> Upload:
        """A new upload of `expected` bytes. Refused if they cannot be stored."""
        upload = cls(root, secrets.token_hex(8))
        try:
            (upload.folder / FILES).mkdir(parents=True)
            free = shutil.disk_usage(upload.folder).free - _RESERVE
        except OSError as error:
            upload.discard()
            raise CacheError(f"{root}: cannot be written: {error.strerror or error}") from None
        if expected > free:
            upload.discard()
            raise CacheError(f"the disk is too full: {byte_count(expected)} needed, {byte_count(max(0, free))} free")
        return upload

    def exists(self) -> bool:
        return self.folder.is_dir() and not is_link(self.folder)

    def zip_path(self, number: int) -> Path:
        return self.folder / f"{number}.zip"

    def discard(self) -> None:
        """Remove everything that arrived."""
        if not is_link(self.folder):
            shutil.rmtree(self.folder, ignore_errors=True)

    def add_to(self, folder: Path, if_exists: str, watch: Watch) -> Added:
        """Unpack the zips and add all files to a folder of images. Then the upload is gone, even if that failed."""
        try:
            with ExitStack() as stack:
                files = list(self._files())
                archives = [stack.enter_context(Archive(path)) for path in self._zips()]
                size = sum(file.path.stat().st_size for file in files)
                count = _Counter(watch, size + 2 * sum(archive.bytes for archive in archives))
                for number, archive in enumerate(archives, 1):
                    into = self.folder / f"zip-{number}"
                    into.mkdir()
                    files += archive.extract(into, count, number)
                added = add_files(files, folder, if_exists, count)
                added.skipped[:0] = [skipped for archive in archives for skipped in archive.skipped]
            return added
        except OSError as error:
            raise CacheError(f"{folder.name}: cannot be written: {error.strerror or error}") from error
        finally:
            self.discard()

    def _zips(self) -> list[Path]:
        return [path for number in range(MAX_ZIPS) if (path := self.zip_path(number)).is_file()]

    def _files(self) -> Iterator[Incoming]:
        top = self.folder / FILES
        for above, folders, names in os.walk(top):
            folders.sort()
            for name in sorted(names):
                path = Path(above, name)
                match = _NUMBERED.fullmatch(name)
                if match and path.is_file() and not is_link(path):
                    yield Incoming(path, Path(above, match[1]).relative_to(top).as_posix())


class _Counter:
    """Adds up bytes for a watch."""

    def __init__(self, watch: Watch, total: int) -> None:
        self._watch, self._done, self._total = watch, 0, total
        watch(0, total)

    def __call__(self, count: int) -> None:
        self._done += count
        self._watch(self._done, self._total)


def remove_abandoned(root: Path) -> None:
    """Remove uploads whose page was closed over a day ago."""
    for path in root.glob(f"{_PREFIX}*"):
        try:
            if not is_link(path) and time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
        except OSError:  # removed meanwhile
            continue
