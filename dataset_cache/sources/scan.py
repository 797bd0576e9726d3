"""Scanning: which files a source folder contains, and which of them changed. One scandir per folder, one stat per file.

Each folder listing has a digest. If all digests equal those of the last run, nothing is compared, opened or hashed.
Otherwise each file's stamp (size, mtime, inode, ctime) is compared, and only files with another stamp are read.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import xxhash

from ...errors import CacheError, SourceUnreadable
from ..format import MANIFEST, SHARDS
from .captions import METADATA, SIDECARS, is_text
from .choices import CHOICES
from .masks import is_mask
from .memory import Known, SourceMemory
from .source import Excluded
from .source_files import (
    PROBES,
    STAMP_BYTES,
    UNSETTLED,
    Facts,
    FileRecord,
    Listing,
    extension_of,
    is_past,
    pack_stamps,
    read_facts,
)

_UNSETTLED_NS = 2_000_000_000  # the resolution of times on some file systems
_PAUSES = (0.1, 0.3)  # seconds before files that cannot be read are tried again
_COMMIT = 1024  # files between two commits: a crash while hashing loses at most these
_AT_ONCE = 64  # files that a thread reads in turn: handing over each one takes as long as reading it
_RELEVANT = frozenset({*PROBES, *map(extension_of, SIDECARS), extension_of(METADATA)})
_Listed = dict[str, tuple[int, list[str], list[str]]]  # folder → mtime, files, folders


@dataclass
class Counts:
    """How many source files a run listed, opened, hashed and decoded."""

    listed: int = 0
    opened: int = 0  # while comparing with the memory
    hashed: int = 0
    decoded: int = 0


@dataclass
class Inventory:
    """Facts by folder and name. `settled` is False if some stamps cannot be relied on next time."""

    folders: dict[str, dict[str, Facts]] = field(default_factory=dict)
    settled: bool = True
    trusted: int = 0  # files not checked for changes


def walk_folder(
    root: str, recursive: bool, skip: Iterable[str] = (), trust: bool = False
) -> tuple[list[Listing], list[Excluded]]:
    """The listings below a folder, in sorted order, and what could not be listed. Folders in `skip` are skipped."""
    if os.path.isfile(root):
        raise CacheError(f"{root}: is a file, expected a folder of images. Nothing was changed")
    if not os.path.isdir(root):
        raise CacheError(f"{root}: the source folder is missing; mount it or correct the path. Nothing was changed")
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
                raise SourceUnreadable(f"{root}: cannot be listed: {error.strerror}. Nothing was changed") from error
            problems.append(_unlisted(directory, error))
            continue
        if directory != root and _is_cache(listing, below):
            continue
        listings.append(listing)
        if recursive:
            # Popped from the end: real folders before links to them, so that the link is reported as the duplicate.
            pending += [path for _, path in sorted(below, reverse=True)]
    listings.sort(key=lambda listing: listing.directory.split(os.sep))
    return listings, problems


class FolderWatch:
    """Size and mtime of all files below some folders. A folder is listed again only if its own mtime changed.

    Several threads may ask at once, and none waits for the disk of another: each replaces the table as a whole.
    """

    def __init__(self) -> None:
        self._listed: _Listed = {}  # never changed, only replaced

    def files(self, roots: Iterable[str]) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        listed: _Listed = {}
        seen: set[str] = set()
        waiting = list(roots)
        while waiting:
            folder = waiting.pop()
            real = os.path.realpath(folder)  # links may form a loop
            if real in seen:
                continue
            seen.add(real)
            with contextlib.suppress(OSError):  # gone, or not readable
                files, folders = self._list(folder, listed)
                found.update(_sizes(files))
                waiting += folders
        self._listed = listed
        return dict(sorted(found.items()))

    def _list(self, folder: str, listed: _Listed) -> tuple[list[str], list[str]]:
        now, modified = time.time_ns(), os.stat(folder).st_mtime_ns
        before = self._listed.get(folder)
        if before is None or before[0] != modified:
            with os.scandir(folder) as entries:
                paths = [(entry.is_dir(), entry.path) for entry in entries]
            before = modified, [path for is_dir, path in paths if not is_dir], [p for is_dir, p in paths if is_dir]
        if is_past(modified, now, _UNSETTLED_NS):  # else a file may be added without a visible change
            listed[folder] = before
        return before[1], before[2]


def _sizes(files: Iterable[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    for path in files:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                yield path, (status.st_size, status.st_mtime_ns)


def take_inventory(
    listings: list[Listing],
    memory: SourceMemory,
    counts: Counts,
    *,
    hash_new: bool,
    trust: bool = False,
    threads: int = 4,
    check: Callable[[], None] = lambda: None,
) -> Inventory:
    """Facts of all files in the listings. `check` is called between reads and may raise to interrupt.

    Without `hash_new`, only the headers of new files are read: they are hashed when they are decoded.
    """
    found = Inventory()
    candidates: list[tuple[int, str, str, bool]] = []
    for listing in listings:
        known = memory.files(listing.directory)
        facts, stale = _compare(listing, known, trust)
        memory.forget_files(listing.directory, known.keys() - set(listing.names))
        found.folders[listing.directory] = facts
        found.trusted += len(facts) if trust else 0
        for name, size in stale:
            candidates.append((size, listing.directory, name, hash_new or name in known or is_mask(name)))
    counts.listed += sum(len(listing.names) for listing in listings)
    # Largest first, so that no thread is still busy with a big file at the end.
    candidates.sort(key=lambda c: (-c[0], c[1:]))
    for pause in (0.0, *_PAUSES):
        time.sleep(pause)
        for rows in _read_all(candidates, threads, counts, check):
            memory.remember_files(row for row in rows if not row[3].unreadable)
            for directory, name, stamp, facts in rows:
                found.folders[directory][name] = facts
                found.settled &= stamp != UNSETTLED
        candidates = [c for c in candidates if found.folders[c[1]][c[2]].unreadable]
        if not candidates:
            break
    return found


def _list(directory: str, problems: list[Excluded], trust: bool) -> tuple[Listing, list[tuple[bool, str]]]:
    names: list[str] = []
    numbers: list[int] = []
    below: list[tuple[bool, str]] = []
    with os.scandir(directory) as entries:
        for entry in entries:  # hot loop: 100,000 files take about a third of a second, mostly for stat
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
                if name.rpartition(".")[2].lower() not in _RELEVANT:  # perhaps a folder
                    problems.append(Excluded(entry.path, f"cannot be read: {error.strerror}", unreadable=True))
                    continue
                # Listed without a stamp: reading it will tell. An image must not lose its caption because of it.
                names.append(name)
                numbers += () if trust else (0, 0, 0, 0)
    return _listing(directory, names, pack_stamps(numbers), problems), below


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
    """Whether a folder is a cache of ours: never part of a source, wherever it is."""
    return MANIFEST in listing.names and any(os.path.basename(path) == SHARDS for _, path in below)


def _is_loop(directory: str, seen: set[tuple[int, int]], problems: list[Excluded]) -> bool:
    try:
        status = os.stat(directory)
    except OSError as error:
        problems.append(_unlisted(directory, error))
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


def _unlisted(directory: str, error: OSError) -> Excluded:
    return Excluded(directory, f"the folder cannot be listed: {error.strerror}", unreadable=True)


def _compare(listing: Listing, known: dict[str, Known], trust: bool) -> tuple[dict[str, Facts], list[tuple[str, int]]]:
    facts: dict[str, Facts] = {}
    stale: list[tuple[str, int]] = []
    for name, stamp in listing.rows():
        before = known.get(name)
        trusted = trust and name != CHOICES  # what a user excluded is always read: it is one small file
        if before is not None and (before[0] == stamp != UNSETTLED or (trusted and not before[1].error)):
            facts[name] = before[1]
        else:
            stale.append((name, int.from_bytes(stamp[:8], "little")))
    return facts, stale


def read_records(directory: str, names: Iterable[str]) -> list[FileRecord]:
    """What reading and hashing these files of a folder reveals."""
    return [(directory, name, *read_facts(os.path.join(directory, name), True)) for name in names]


def _read_all(
    candidates: list[tuple[int, str, str, bool]], threads: int, counts: Counts, check: Callable[[], None]
) -> Iterator[list[FileRecord]]:
    def read(some: list[tuple[int, str, str, bool]]) -> list[FileRecord]:
        return [(d, name, *read_facts(os.path.join(d, name), whole)) for _, d, name, whole in some]

    with ThreadPoolExecutor(threads, "streamcache-hash") as pool:
        for start in range(0, len(candidates), _COMMIT):
            check()
            chunk = candidates[start : start + _COMMIT]
            counts.opened += len(chunk)
            counts.hashed += sum(whole or is_text(name) for _, _, name, whole in chunk)
            parts = [chunk[at : at + _AT_ONCE] for at in range(0, len(chunk), _AT_ONCE)]
            yield [row for rows in pool.map(read, parts) for row in rows]
