"""What stands in a dataset's folder and who needs it. Files that this format does not make are left out of it."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..format import BUILD, JOURNAL, MANIFEST, SEGMENT_LOCK, SHARDS, Manifest, abandoned, is_link, recover, storage_at
from ..write import index_generation, shards_inside

_TEMPORARY = re.compile(r"\.(dataset\.json|index)\.[0-9]+\.tmp")


@dataclass(frozen=True)
class Contents:
    """Files by who needs them; `protected` are names of shards that an unfinished build refers to."""

    current: tuple[Path, ...]
    superseded: tuple[Path, ...]
    building: tuple[Path, ...]
    debris: tuple[Path, ...]
    protected: frozenset[str]

    @property
    def old_indexes(self) -> list[Path]:
        return [path for path in self.superseded if index_generation(path) is not None]


def folder_contents(folder: Path, manifest: Manifest | None, publishing: bool) -> Contents:
    """Sort the files of a dataset. While somebody is `publishing`, unlisted files may be theirs and count as needed."""
    listed = _listed(folder, manifest)
    known = set(listed)
    segments = list(_segments(folder, publishing))
    protected = frozenset(name for s in segments for name in s.shards)
    indexes = [path for path in sorted(folder.glob("index-*")) if index_generation(path) and path not in known]
    unlisted = [path for path in shards_inside(folder) if path not in known and path.name not in protected]
    temporary = [path for path in sorted(folder.glob(".*")) if _TEMPORARY.fullmatch(path.name)]
    # Which shards an older generation reads is not known, so while there is one, all unlisted ones may be its own.
    has_old = bool(indexes) and manifest is not None
    superseded = [*indexes, *unlisted] if has_old else []
    strays = [*temporary, *([] if has_old else [*indexes, *unlisted])]
    building = [path for s in segments for path in s.needed] + (strays if publishing else [])
    debris = [path for s in segments for path in s.debris] + ([] if publishing else strays)
    current = tuple(path for path in listed if path.exists())
    return Contents(current, tuple(superseded), tuple(building), tuple(debris), protected)


def total_bytes(paths: Iterable[Path]) -> int:
    """The sizes of these files as a listing shows them, not the blocks they take on a disk."""
    return sum(path.lstat().st_size for path in paths)


@dataclass(frozen=True)
class _Segment:
    needed: tuple[Path, ...]
    debris: tuple[Path, ...]
    shards: frozenset[str]


def _segments(folder: Path, publishing: bool) -> Iterator[_Segment]:
    storage = storage_at(folder)
    left = {folder / name for name in abandoned(storage)}
    for path in _own(folder / BUILD):
        if is_link(path) or not path.is_dir():
            yield _Segment((path,), (), frozenset()) if publishing else _Segment((), (path,), frozenset())
            continue
        found = recover(storage, path.relative_to(folder).as_posix())
        inside = tuple(p for p in sorted(path.rglob("*")) if not p.is_dir())
        shards = frozenset(name for entry in found.entries for name, _, _ in entry.refs)
        shards |= {shard.file for shard in found.shards if shard.file is not None}
        if publishing or path not in left:
            yield _Segment(inside, (), shards)
        elif not found.entries:
            yield _Segment((), inside, frozenset())
        else:
            keep = {folder / shard.place for shard in found.shards} | {path / JOURNAL, path / SEGMENT_LOCK}
            needed = tuple(p for p in inside if p in keep)
            yield _Segment(needed, tuple(p for p in inside if p not in keep), shards)


def _listed(folder: Path, manifest: Manifest | None) -> list[Path]:
    if manifest is None:
        return []
    shards = [folder / SHARDS / shard.file for shard in manifest.shards]
    return [folder / MANIFEST, folder / manifest.index_name, *shards]


def _own(folder: Path) -> list[Path]:
    """What stands in a folder of the dataset; behind a link stands what may belong to somebody else."""
    return sorted(folder.iterdir()) if folder.is_dir() and not is_link(folder) else []
