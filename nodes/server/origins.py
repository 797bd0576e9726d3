"""Origins: whether the folders that a cache was made from are still there. Nothing below them is listed."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...dataset_cache import Manifest, state_file
from .untrusted import as_dict, as_list

PRESENT, MISSING, PARTLY, NONE = "present", "missing", "partly", "none"
_MOST = 50  # folders that are looked for
# From one folder to the next by the table's key: the rows of their files are not read.
_FOLDERS = """
WITH RECURSIVE folder(place) AS (
  SELECT min(directory) FROM file
  UNION ALL SELECT (SELECT min(directory) FROM file WHERE directory > place) FROM folder WHERE place IS NOT NULL
) SELECT place FROM folder WHERE place IS NOT NULL LIMIT ?
"""


@dataclass(frozen=True)
class Origin:
    """What a manifest says about where its samples are from: names of folders, not where on its machine they were."""

    dataset: str
    folders: tuple[str, ...]


def origin_of(manifest: Manifest) -> Origin:
    return Origin(manifest.id, tuple(sorted(set(_source_names(manifest.provenance))))[:_MOST])


def find_sources(origin: Origin, roots: Sequence[Path]) -> str:
    """Whether the source folders exist: those that this machine remembers, else any of their names below `roots`."""
    if not origin.folders:
        return NONE
    known = _remembered(origin.dataset)
    found = [os.path.isdir(path) for path in known] or [_is_below(name, roots) for name in origin.folders]
    return PRESENT if all(found) else PARTLY if any(found) else MISSING


def _source_names(provenance: dict[str, Any], depth: int = 3) -> Iterator[str]:
    for source in as_list(as_dict(provenance.get("encode")).get("sources")):
        folder = as_dict(source).get("folder")
        if isinstance(folder, str) and folder:
            yield folder
    for part in as_list(provenance.get("merged")) if depth else ():
        yield from _source_names(as_dict(as_dict(part).get("provenance")), depth - 1)


def _remembered(dataset: str) -> list[str]:
    path = state_file(dataset)
    if not path.is_file():
        return []
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0.1)) as state:
            return [name for (name,) in state.execute(_FOLDERS, (_MOST,)) if isinstance(name, str)]
    except sqlite3.Error:  # locked or damaged: it is not needed
        return []


def _is_below(name: str, roots: Sequence[Path]) -> bool:
    plain = os.path.basename(name) == name and name not in (".", "..") and "\0" not in name
    return plain and any((root / name).is_dir() for root in roots)
