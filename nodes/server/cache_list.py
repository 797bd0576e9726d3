"""The list of caches: one row per cache below the roots, from its manifest alone, and whether its source folders still
exist. A cache that cannot be read gets a row with its problem and hides no other."""

import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ...dataset_cache import (
    THUMBNAIL,
    CacheError,
    Manifest,
    holders,
    manifest_stamp,
    named_publisher,
    peek_bucket_counts,
    published_at,
    read_manifest,
    remembered_folders,
)
from ..library import list_caches, run_of
from ..outside import as_dict, as_list, as_time, cut_text

PRESENT, MISSING, PARTLY, NONE = "present", "missing", "partly", "none"
_MAX_KNOWN = 2000
_MAX_READERS = 50
_MAX_BUCKETS = 500
_MAX_FOLDERS = 50  # source folders looked up per cache
_HASH = re.compile(r"[0-9a-f]{32,}")
_SHORT = 12  # characters of a hash: enough to distinguish encoders
_FIELDS = {"image": "latent", "text": "conditioning"}


@dataclass(frozen=True)
class CacheRow:
    """A cache in a list. `problem` says why it cannot be opened; `sources` whether its source folders exist."""

    name: str
    samples: int = 0
    bytes: int = 0
    published: float = 0.0
    generation: str = ""
    buckets: list[dict[str, Any]] = field(default_factory=list)
    encoders: dict[str, str] = field(default_factory=dict)
    readers: tuple[str, ...] = ()
    writer: str | None = None
    sources: str = NONE
    thumbnails: bool = False
    problem: str = ""
    made_for: str = ""  # the run for which Train LoRA saved it

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Origin:
    """The source folders of a cache as its manifest records them: names without their place on that machine."""

    dataset: str
    folders: tuple[str, ...]


@dataclass(frozen=True)
class _Known:
    """What was read from a manifest; valid while the file's stamp is the same."""

    stamp: tuple
    row: CacheRow
    origin: Origin


_known: dict[str, _Known] = {}
_lock = threading.Lock()


def list_rows(roots: Sequence[Path], source_roots: Sequence[Path]) -> list[CacheRow]:
    return [cache_row(name, folder, source_roots) for name, folder in sorted(list_caches(roots).items())]


def cache_row(name: str, folder: Path, source_roots: Sequence[Path]) -> CacheRow:
    """The row of one cache. Never raises if the cache is damaged: the row reports the problem."""
    try:
        known = _recall(folder)
        sources = find_sources(known.origin, source_roots)
        return replace(known.row, name=name, readers=_readers(folder), writer=named_publisher(folder), sources=sources)
    except (CacheError, OSError) as error:
        return CacheRow(name, problem=cut_text(str(error)))


def find_sources(origin: Origin, roots: Sequence[Path]) -> str:
    """Whether the source folders exist: those that this machine remembers, otherwise any of their names in `roots`."""
    if not origin.folders:
        return NONE
    known = remembered_folders(origin.dataset, _MAX_FOLDERS)
    found = [os.path.isdir(path) for path in known] or [_is_below(name, roots) for name in origin.folders]
    return PRESENT if all(found) else PARTLY if any(found) else MISSING


def _recall(folder: Path) -> _Known:
    stamp = manifest_stamp(folder)
    with _lock:
        known = _known.get(str(folder))
    if known is not None and known.stamp == stamp:
        return known
    manifest = read_manifest(folder)
    if manifest is None or stamp is None:
        raise CacheError(f"{folder}: has just been removed")
    known = _Known(stamp, _row(folder, manifest), _origin(manifest))
    with _lock:
        while len(_known) >= _MAX_KNOWN:
            del _known[next(iter(_known))]
        _known[str(folder)] = known
    return known


def _row(folder: Path, manifest: Manifest) -> CacheRow:
    counts = list(peek_bucket_counts(folder, manifest).items())
    return CacheRow(
        name=folder.name,
        samples=manifest.counts.get("samples", 0),
        bytes=sum(shard.bytes for shard in manifest.shards) + manifest.whole_index_bytes,
        published=as_time(published_at(folder)),
        generation=manifest.generation,
        buckets=[{"name": label, "samples": count} for label, count in counts[:_MAX_BUCKETS]],
        encoders=_encoders(manifest),
        thumbnails=THUMBNAIL in manifest.fields,
        made_for=cut_text(run_of(manifest)),
    )


def _readers(folder: Path) -> tuple[str, ...]:
    return tuple(map(str, holders(folder)[:_MAX_READERS]))


def _encoders(manifest: Manifest) -> dict[str, str]:
    encode = as_dict(manifest.provenance.get("encode"))
    encoders = as_dict(encode.get("encoders")) | as_dict(encode.get("encoder_names"))
    named = {field: encoders.get(part) for part, field in _FIELDS.items()}
    return {field: _short(name) for field, name in named.items() if isinstance(name, str) and name}


def _short(identity: str) -> str:
    return identity[:_SHORT] if _HASH.fullmatch(identity) else cut_text(identity, 60)


def _origin(manifest: Manifest) -> Origin:
    return Origin(manifest.id, tuple(sorted(set(_source_names(manifest.provenance))))[:_MAX_FOLDERS])


def _source_names(provenance: dict[str, Any], depth: int = 3) -> Iterator[str]:
    for source in as_list(as_dict(provenance.get("encode")).get("sources")):
        folder = as_dict(source).get("folder")
        if isinstance(folder, str) and folder:
            yield folder
    for part in as_list(provenance.get("merged")) if depth else ():
        yield from _source_names(as_dict(as_dict(part).get("provenance")), depth - 1)


def _is_below(name: str, roots: Sequence[Path]) -> bool:
    plain = os.path.basename(name) == name and name not in (".", "..") and "\0" not in name
    return plain and any((root / name).is_dir() for root in roots)
