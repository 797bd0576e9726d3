"""A zip of images: takes out the files that a folder of images has a use for, within limits, and names the others.

A zip is untrusted: its names may lead elsewhere, its sizes may be wrong, and a small one may unpack to terabytes. Files
are written under numbers; their names are only data until they are added to a folder.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from lzma import LZMAError
from pathlib import Path

from ...errors import CacheError
from ...quantity import byte_count
from ..sources import normal_form
from .incoming import MASKS, Incoming, Skipped, is_debris, refusal_of, size_refusal

MAX_ENTRIES = 100_000
MAX_DIRECTORY = 32 << 20  # bytes of the zip's table of contents
MAX_RATIO = 100  # unpacked to packed bytes, beyond what is always allowed
ALWAYS_ALLOWED = 256 << 20
_CHUNK = 1 << 20
_RESERVE = 64 << 20  # bytes that stay free on the disk
_ENCRYPTED = 0x1
_REPEATS = re.compile(r"[0-9]+_.+")  # the name of such a folder says how often its images are repeated

Progress = Callable[[int], None]  # called with the bytes that were just written; may raise to stop


class Archive:
    """An open zip. Use it in `with`: `files` are those that `extract` writes, `skipped` the others."""

    def __init__(self, path: Path) -> None:
        self.skipped: list[Skipped] = []
        self._file = _BoundedReads(io.FileIO(path))
        try:
            self._zip = zipfile.ZipFile(self._file)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
            self._file.close()
            reason = str(error) if isinstance(error, CacheError) else "not a zip file, or a damaged one"
            raise CacheError(f"the zip cannot be read: {reason}") from None
        try:
            self.files = _without_top(list(self._usable()))
            self.bytes = sum(entry.file_size for entry, _ in self.files)
            self._check_size(path)
        except BaseException:
            self._zip.close()
            self._file.close()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *exc: object) -> None:
        self._zip.close()
        self._file.close()

    def extract(self, into: Path, progress: Progress, origin: int = 0) -> Iterator[Incoming]:
        """Write the files to the folder `into`. One that is damaged is skipped."""
        free = shutil.disk_usage(into).free - _RESERVE
        if self.bytes > free:
            raise CacheError(f"the disk is too full: {byte_count(self.bytes)} needed, {byte_count(max(0, free))} free")
        for number, (entry, name) in enumerate(self.files):
            target = into / f"{number:06}.{name.rpartition('.')[2]}"
            problem = self._write(entry, target, progress)
            if problem:
                target.unlink(missing_ok=True)
                self.skipped.append(Skipped(name, problem))
            else:
                yield Incoming(target, name, origin)

    def _write(self, entry: zipfile.ZipInfo, target: Path, progress: Progress) -> str:
        try:
            with self._zip.open(entry) as packed, open(target, "xb") as file:
                while chunk := packed.read(_CHUNK):
                    file.write(chunk)
                    progress(len(chunk))
        except (zipfile.BadZipFile, zlib.error, LZMAError, EOFError, NotImplementedError, RuntimeError, ValueError):
            return "damaged in the zip, or packed in an unknown way"
        except OSError as error:
            if error.errno is not None:  # the disk; bzip2 raises an OSError without a number for damaged data
                raise
            return "damaged in the zip"
        return ""

    def _usable(self) -> Iterator[tuple[zipfile.ZipInfo, str]]:
        entries = self._zip.infolist()
        if len(entries) > MAX_ENTRIES:
            raise CacheError(f"the zip has {len(entries):,} entries; at most {MAX_ENTRIES:,} are allowed")
        seen: set[str] = set()
        for entry in entries:
            name = entry.filename.replace("\\", "/")
            if name.endswith("/") or is_debris(name):
                continue
            reason = _refusal(entry, name) or ("twice in the zip" if normal_form(name) in seen else "")
            if reason:
                self.skipped.append(Skipped(name, reason))
                continue
            seen.add(normal_form(name))
            yield entry, name

    def _check_size(self, path: Path) -> None:
        packed = os.path.getsize(path)
        if self.bytes > ALWAYS_ALLOWED and self.bytes > packed * MAX_RATIO:
            raise CacheError(
                f"the zip would unpack to {byte_count(self.bytes)} from {byte_count(packed)}; "
                f"at most {MAX_RATIO} times its size is allowed"
            )


class _BoundedReads(io.BufferedReader):
    """`zipfile` reads the whole table of contents at once, however large the zip says it is."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(MAX_DIRECTORY + 1 if size is None or size < 0 or size > MAX_DIRECTORY else size)
        if len(data) > MAX_DIRECTORY:
            raise CacheError(f"its table of contents has more than {MAX_DIRECTORY:,} bytes")
        return data


def _refusal(entry: zipfile.ZipInfo, name: str) -> str:
    mode = entry.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return "a link or a device"
    if entry.flag_bits & _ENCRYPTED:
        return "encrypted; unpack the zip with its password first"
    return refusal_of(name) or size_refusal(entry.file_size)


def _without_top(files: list[tuple[zipfile.ZipInfo, str]]) -> list[tuple[zipfile.ZipInfo, str]]:
    """Without the folder that all files are in: the folder that they are added to takes its place."""
    tops = {name.partition("/")[0] if "/" in name else "" for _, name in files}
    top = next(iter(tops)) if len(tops) == 1 else ""
    if not top or top == MASKS or _REPEATS.fullmatch(top):
        return files
    return _without_top([(entry, name.partition("/")[2]) for entry, name in files])
