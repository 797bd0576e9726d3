"""Sorts the files of a cache's folder by what needs them. Files that this format does not write are ignored.

A name is relative to the folder, with `/` between its parts.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..format import (
    BUILD,
    JOURNAL,
    MANIFEST,
    SEGMENT_LOCK,
    SHARDS,
    Manifest,
    Storage,
    abandoned,
    index_generation,
    recover,
)
from ..read import find_lost
from ..write import list_shards

TRAVEL = ".travel"  # what pull and push need in a folder
INCOMING, TRAVEL_LOCK = f"{TRAVEL}/incoming", f"{TRAVEL}/lock"
_TEMPORARY = re.compile(r"\.(dataset\.json|index)\.[0-9]+\.tmp")


@dataclass(frozen=True)
class Contents:
    """Names of files by what needs them. `protected` are shards that an unfinished build refers to.

    If the manifest is lost, all indexes and shards count as current: nothing says what they belong to.
    """

    current: tuple[str, ...]
    superseded: tuple[str, ...]
    building: tuple[str, ...]
    debris: tuple[str, ...]
    protected: frozenset[str]

    @property
    def old_indexes(self) -> list[str]:
        return [name for name in self.superseded if index_generation(name) is not None]


def folder_contents(storage: Storage, manifest: Manifest | None, publishing: bool) -> Contents:
    """Sort the files of a cache. While a process is `publishing`, unlisted files may be its own and count as needed."""
    listed = _listed(manifest)
    known = set(listed)
    segments = list(_segments(storage, publishing))
    protected = frozenset(file for segment in segments for file in segment.shards)
    top = storage.list()
    indexes = [name for name in top if index_generation(name) and name not in known]
    shards = [file for file in list_shards(storage) if file not in protected]
    unlisted = [f"{SHARDS}/{file}" for file in shards if f"{SHARDS}/{file}" not in known]
    temporary = [name for name in top if _TEMPORARY.fullmatch(name)]
    # Which shards an older generation reads is unknown. While there is one, all unlisted shards may be its own.
    has_old = bool(indexes) and manifest is not None
    superseded = [*indexes, *unlisted] if has_old else []
    is_lost = manifest is None and find_lost(storage) is not None
    strays = [*temporary, *([] if has_old or is_lost else [*indexes, *unlisted])]
    building = [name for segment in segments for name in segment.needed] + (strays if publishing else [])
    debris = [name for segment in segments for name in segment.debris] + ([] if publishing else strays)
    debris += _left_of_travel(storage)
    current = [name for name in listed if storage.stat(name) is not None] + ([*indexes, *unlisted] if is_lost else [])
    return Contents(tuple(current), tuple(superseded), tuple(building), tuple(debris), protected)


def _left_of_travel(storage: Storage) -> list[str]:
    """What an interrupted pull has left, until it is run again."""
    names = [f"{INCOMING}/{name}" for name in storage.list(INCOMING)]
    with contextlib.suppress(OSError):  # the lock is missing, or cannot be asked
        return [] if names and storage.is_locked(TRAVEL_LOCK) else names
    return names


def total_bytes(storage: Storage, names: Iterable[str]) -> int:
    """The sizes of these files as a listing shows them, not the disk blocks they take."""
    return sum(file_bytes(storage, name) for name in names)


def file_bytes(storage: Storage, name: str) -> int:
    status = storage.stat(name)
    return status.size if status is not None else 0


@dataclass(frozen=True)
class _Segment:
    needed: tuple[str, ...] = ()
    debris: tuple[str, ...] = ()
    shards: frozenset[str] = frozenset()


def _segments(storage: Storage, publishing: bool) -> Iterator[_Segment]:
    left = set(abandoned(storage))
    for name in storage.list(BUILD):
        folder = f"{BUILD}/{name}"
        if not _is_folder(storage, folder):
            yield _Segment(needed=(folder,)) if publishing else _Segment(debris=(folder,))
            continue
        found = recover(storage, folder)
        inside = tuple(_files_below(storage, folder))
        shards = frozenset(file for entry in found.entries for file, _, _ in entry.refs)
        shards |= {shard.file for shard in found.shards if shard.file is not None}
        if publishing or folder not in left:
            yield _Segment(inside, (), shards)
        elif not found.entries:
            yield _Segment(debris=inside)
        else:
            keep = {shard.place for shard in found.shards} | {f"{folder}/{JOURNAL}", f"{folder}/{SEGMENT_LOCK}"}
            needed = tuple(file for file in inside if file in keep)
            yield _Segment(needed, tuple(file for file in inside if file not in keep), shards)


def _files_below(storage: Storage, folder: str) -> Iterator[str]:
    for name in storage.list(folder):
        inner = f"{folder}/{name}"
        if _is_folder(storage, inner):
            yield from _files_below(storage, inner)
        else:
            yield inner


def _is_folder(storage: Storage, name: str) -> bool:
    status = storage.stat(name)
    return status is not None and status.kind == "folder"


def _listed(manifest: Manifest | None) -> list[str]:
    if manifest is None:
        return []
    return [MANIFEST, *manifest.index_names, *(f"{SHARDS}/{shard.file}" for shard in manifest.shards)]
