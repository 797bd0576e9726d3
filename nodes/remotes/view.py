"""Remote roots as a page shows them: their caches, and what this machine has of each."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...dataset_cache import CacheError, manifest_stamp, published_at, read_manifest, travel
from ..library import list_caches, parse_name
from ..outside import as_time, cut_text
from .roots import REMOTE_ROOTS, RemoteCache

PATIENCE_SECONDS = 1.5  # that a page waits for a remote; then it asks again
NONE, PARTLY, WHOLE = "none", "partly", "whole"
_UNKNOWN = "unknown"


def remote_rows(local: Sequence[Path], again: bool) -> list[dict[str, Any]]:
    """The registered roots with their caches, as far as they are known in time, and what is below the `local` roots."""
    found = REMOTE_ROOTS.rows(PATIENCE_SECONDS, again)
    here = caches_by_id(local) if any(root.caches for root in found) else {}
    return [
        {
            "name": cut_text(root.name),
            "address": cut_text(root.address),
            "state": root.state,
            "problem": cut_text(root.problem),
            "again": root.again,
            "caches": [_row(cache, here, local) for cache in root.caches],
        }
        for root in found
    ]


def _row(cache: RemoteCache, here: dict[str, tuple[str, Path]], local: Sequence[Path]) -> dict[str, Any]:
    """`local` is what is here: nothing, a part of a first pull, or a whole generation; `relation` compares it.

    If both sides have changed, `here` is what the user compares with the remote one.
    """
    manifest = cache.manifest
    row = {"name": cache.name, "problem": cut_text(cache.problem), "samples": 0, "bytes": 0, "generation": ""}
    row |= {"published": as_time(cache.published), "local": NONE, "local_name": "", "relation": "", "arrived": 0}
    row |= {"here": None}
    if manifest is None:
        return row
    size = sum(shard.bytes for shard in manifest.shards) + manifest.whole_index_bytes
    row |= {"samples": manifest.counts.get("samples", 0), "bytes": size, "generation": manifest.generation}
    name, folder = here.get(manifest.id) or (cache.name, local[0].joinpath(*parse_name(cache.name)))
    try:
        part = travel.unfinished_in(folder)
        if part is not None and part.manifest.id == manifest.id:
            row |= {"local": PARTLY, "local_name": name, "arrived": part.arrived}
        if manifest.id in here:
            relation = travel.relation_of(folder, cache.place, manifest)
            whole = PARTLY if part is not None and relation == travel.BEHIND else WHOLE
            row |= {"local": whole, "local_name": name, "relation": relation}
            row |= {"here": _side(folder) if relation == travel.APART else None}
    except (CacheError, OSError) as error:
        row |= {"problem": cut_text(str(error)), "relation": _UNKNOWN}
    return row


def _side(folder: Path) -> dict[str, Any] | None:
    manifest = read_manifest(folder)
    if manifest is None:
        return None
    samples, published = manifest.counts.get("samples", 0), as_time(published_at(folder))
    return {"samples": samples, "generation": manifest.generation, "published": published}


_ids: dict[str, tuple[Any, str]] = {}  # folder → stamp of its manifest, the id of its dataset


def caches_by_id(roots: Sequence[Path]) -> dict[str, tuple[str, Path]]:
    """The name and folder of each local cache by the id of its dataset. Of copies with one id, the first by name."""
    found: dict[str, tuple[str, Path]] = {}
    for name, folder in sorted(list_caches(roots).items()):
        with contextlib.suppress(CacheError, OSError):
            stamp, known = manifest_stamp(folder), _ids.get(str(folder))
            if known is None or known[0] != stamp:
                manifest = read_manifest(folder)
                known = _ids[str(folder)] = (stamp, "" if manifest is None else manifest.id)
            found.setdefault(known[1], (name, folder))
    return found
