"""Scan: which files a folder holds, and which of them changed. One scandir per folder, one stat per file.

A folder's listing has a digest: where all digests are those of the last run, nothing is compared, opened or hashed.
Otherwise each file's stamp (size, mtime, inode, ctime) is compared, and only files whose stamp differs are read.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import xxhash

from ..errors import CacheError
from ..format import MANIFEST, SHARDS
from . import captions, images
from .source import Excluded

STAMP_BYTES = 32
UNSETTLED = bytes(STAMP_BYTES)  # the stamp of a file that must be read again next time
_RELEVANT = frozenset({*images.EXTENSIONS, *(s[1:] for s in captions.SIDECARS), captions.METADATA.rpartition(".")[2]})
_LISTS_INODES = os.name != "nt"  # there a listing has 0 for all of them, and a stamp must be the same in both
_TICK_NS = 20_000_000  # two changes within one tick of the kernel's clock leave the same times
_COARSE_TICK_NS = 2_000_000_000  # on file systems that keep whole seconds


@dataclass(frozen=True)
class Listing:
    """The relevant files of one folder. `stamps` holds 32 bytes a name; empty where nothing was stated (trust)."""

    directory: str
    names: list[str]
    stamps: bytes
    digest: bytes

    def rows(self) -> Iterator[tuple[str, bytes]]:
        stamps = self.stamps
        for at, name in enumerate(self.names):
            yield name, stamps[at * STAMP_BYTES : (at + 1) * STAMP_BYTES]


def walk_folder(
    root: str, recursive: bool, skip: Iterable[str] = (), trust: bool = False
) -> tuple[list[Listing], list[Excluded]]:
    """The listings below a folder, in sorted order, and what could not be listed. Folders in `skip` are left out."""
    if os.path.isfile(root):
        raise CacheError(f"{root}: is a file; name the folder of the pictures. Nothing was changed")
    if not os.path.isdir(root):
        raise CacheError(f"{root}: the source folder is not there; mount it, or correct its path. Nothing was changed")
    root = os.path.abspath(root)
    if not _is_nameable(root):
        raise CacheError(f"{root!r}: the source folder's name is not valid Unicode; rename it")
    skipped = {os.path.abspath(folder) for folder in skip}
    listings: list[Listing] = []
    problems: list[Excluded] = []
    seen: set[tuple[int, int]] = set()
    pending = [root]
    while pending:
        directory = pending.pop()
        if directory in skipped or _is_loop(directory, seen, problems):
            continue
        try:
            listing, below = _list(directory, problems, trust)
        except OSError as error:
            if directory == root:
                raise CacheError(f"{root}: cannot be listed: {error.strerror}. Nothing was changed") from error
            problems.append(Excluded(directory, f"the folder cannot be listed: {error.strerror}"))
            continue
        if directory != root and _is_cache(listing, below):
            continue
        listings.append(listing)
        if recursive:
            # Taken from the end: real folders before links to them, so that of the two the link is the repetition.
            pending += [path for _, path in sorted(below, reverse=True)]
    listings.sort(key=lambda listing: listing.directory.split(os.sep))
    return listings, problems


def is_settled(stamp: bytes, read_at_ns: int) -> bool:
    """Whether a file read at that time could not have changed since without its stamp telling."""
    _, modified, _, changed = array("q", stamp)
    if os.name == "nt":  # ctime is the time of creation there; elsewhere mtime is whatever someone set it to
        changed = modified
    tick = _TICK_NS if changed % 1_000_000_000 else _COARSE_TICK_NS
    return changed < read_at_ns - tick


def stamp_of(status: os.stat_result) -> bytes:
    inode = status.st_ino if _LISTS_INODES else 0
    return _pack([status.st_size, status.st_mtime_ns, inode, status.st_ctime_ns])


def _list(directory: str, problems: list[Excluded], trust: bool) -> tuple[Listing, list[tuple[bool, str]]]:
    names: list[str] = []
    numbers: list[int] = []
    below: list[tuple[bool, str]] = []
    with os.scandir(directory) as entries:
        for entry in entries:  # the hot loop: 100,000 turns in about a third of a second, most of it the stat
            name = entry.name
            if name[0] == ".":
                continue
            try:
                if entry.is_dir():
                    below.append((entry.is_symlink(), entry.path))
                elif name.rpartition(".")[2].lower() in _RELEVANT:
                    if not trust:
                        status = entry.stat()
                        numbers += (status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)
                    names.append(name)
            except OSError as error:
                problems.append(Excluded(entry.path, f"cannot be read: {error.strerror}"))
    return _listing(directory, names, _pack(numbers), problems), below


def _listing(directory: str, names: list[str], stamps: bytes, problems: list[Excluded]) -> Listing:
    try:
        joined = "\0".join(names).encode()
    except UnicodeEncodeError:
        return _without_unnameable(directory, names, stamps, problems)
    return Listing(directory, names, stamps, xxhash.xxh3_128_digest(joined + stamps))


def _without_unnameable(directory: str, names: list[str], stamps: bytes, problems: list[Excluded]) -> Listing:
    good = [at for at, name in enumerate(names) if _is_nameable(name)]
    bad = [name for name in names if not _is_nameable(name)]
    problems += (Excluded(f"{directory}/{_shown(name)}", "its name is not valid Unicode; rename it") for name in bad)
    kept = b"".join(stamps[at * STAMP_BYTES : (at + 1) * STAMP_BYTES] for at in good)
    return _listing(directory, [names[at] for at in good], kept, problems)


def _shown(name: str) -> str:
    return name.encode(errors="backslashreplace").decode()


def _is_nameable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_cache(listing: Listing, below: list[tuple[bool, str]]) -> bool:
    """Whether a folder holds a dataset of ours, which is no part of its sources wherever it lies."""
    return MANIFEST in listing.names and any(os.path.basename(path) == SHARDS for _, path in below)


def _is_loop(directory: str, seen: set[tuple[int, int]], problems: list[Excluded]) -> bool:
    try:
        status = os.stat(directory)
    except OSError as error:
        problems.append(Excluded(directory, f"the folder cannot be listed: {error.strerror}"))
        return True
    if not _is_nameable(directory):
        problems.append(Excluded(_shown(directory), "the folder's name is not valid Unicode; rename it"))
        return True
    place = (status.st_dev, status.st_ino)
    if place in seen:
        problems.append(Excluded(directory, "a link to a folder that was already read"))
        return True
    seen.add(place)
    return False


def _pack(numbers: list[int]) -> bytes:
    try:
        return array("q", numbers).tobytes()
    except OverflowError:  # inode numbers may use all 64 bits, or more
        return array("q", [hash(number) for number in numbers]).tobytes()
