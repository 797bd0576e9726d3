"""The shelf: a row for every cache below the roots, from manifests alone. One that cannot be read is shown with its
problem and hides no other."""

import re
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ...dataset_cache import (
    MANIFEST,
    PUBLISH_HOLDER,
    THUMBNAIL,
    CacheError,
    Manifest,
    current_publisher,
    holders,
    manifest_stamp,
    read_manifest,
)
from ..library import count_by_name, list_caches, peek_bucket_names
from .origins import NONE, Origin, find_sources, origin_of
from .untrusted import as_dict, cut_text

_REMEMBERED = 2000
_LISTED = 50
_HASH = re.compile(r"[0-9a-f]{32,}")
_SHORT = 12  # characters of a hash that tell one encoder from another
_FIELDS = {"image": "latent", "text": "conditioning"}


@dataclass(frozen=True)
class CacheRow:
    """A cache in a list. `problem` says why it cannot be opened."""

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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Known:
    """What a manifest says, kept while its file is the same."""

    stamp: tuple
    row: CacheRow
    origin: Origin


_known: dict[str, _Known] = {}
_lock = threading.Lock()


def list_rows(roots: Sequence[Path], source_roots: Sequence[Path]) -> list[CacheRow]:
    return [cache_row(name, folder, source_roots) for name, folder in sorted(list_caches(roots).items())]


def cache_row(name: str, folder: Path, source_roots: Sequence[Path]) -> CacheRow:
    """The row of one cache. Never raises for what is wrong with the cache."""
    try:
        known = _recall(folder)
        sources = find_sources(known.origin, source_roots)
        return replace(known.row, name=name, readers=_readers(folder), writer=_writer(folder), sources=sources)
    except (CacheError, OSError) as error:
        return CacheRow(name, problem=cut_text(str(error)))


def _recall(folder: Path) -> _Known:
    stamp = manifest_stamp(folder)
    with _lock:
        known = _known.get(str(folder))
    if known is not None and known.stamp == stamp:
        return known
    manifest = read_manifest(folder)
    if manifest is None or stamp is None:
        raise CacheError(f"{folder}: was removed just now")
    known = _Known(stamp, _row(folder, manifest), origin_of(manifest))
    with _lock:
        while len(_known) >= _REMEMBERED:
            del _known[next(iter(_known))]
        _known[str(folder)] = known
    return known


def _row(folder: Path, manifest: Manifest) -> CacheRow:
    return CacheRow(
        name=folder.name,
        samples=manifest.counts.get("samples", 0),
        bytes=sum(shard.bytes for shard in manifest.shards) + manifest.index_bytes,
        published=(folder / MANIFEST).lstat().st_mtime,
        generation=manifest.generation,
        buckets=count_by_name(peek_bucket_names(folder, manifest), manifest.buckets),
        encoders=_encoders(manifest),
        thumbnails=THUMBNAIL in manifest.fields,
    )


def _readers(folder: Path) -> tuple[str, ...]:
    return tuple(map(str, holders(folder)[:_LISTED]))


def _writer(folder: Path) -> str | None:
    """Who writes to a cache. The lock itself is asked only where somebody left a name: asking touches its file."""
    return current_publisher(folder) if (folder / PUBLISH_HOLDER).exists() else None


def _encoders(manifest: Manifest) -> dict[str, str]:
    told = as_dict(manifest.provenance.get("encode"))
    made = as_dict(told.get("encoders")) | as_dict(told.get("encoder_names"))
    named = {field: made.get(part) for part, field in _FIELDS.items()}
    return {field: _short(name) for field, name in named.items() if isinstance(name, str) and name}


def _short(identity: str) -> str:
    return identity[:_SHORT] if _HASH.fullmatch(identity) else cut_text(identity, 60)
