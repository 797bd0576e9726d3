"""Caches that Train LoRA made of a plan. Their manifest says for which run; lists of datasets leave them out."""

import threading
from collections.abc import Sequence
from pathlib import Path

from ...dataset_cache import CacheError, Manifest, manifest_stamp, read_manifest
from .paths import list_caches

_KEY, _TRAINING = "made for", "training "
_MAX_KNOWN = 5000

_known: dict[str, tuple[tuple | None, str]] = {}  # folder → stamp of its manifest, its run
_lock = threading.Lock()


def made_for_run(run: str) -> dict[str, str]:
    """What the manifest of a cache says that was made for this run."""
    return {_KEY: f"{_TRAINING}{run}"}


def run_of(manifest: Manifest) -> str:
    """The run that a cache was made for; empty if a user saved it."""
    purpose = manifest.provenance.get(_KEY)
    return purpose[len(_TRAINING) :] if isinstance(purpose, str) and purpose.startswith(_TRAINING) else ""


def saved_names(roots: Sequence[Path]) -> list[str]:
    """The names of the caches that users saved, sorted. One that cannot be read is among them."""
    return sorted(name for name, folder in list_caches(roots).items() if not _run(folder))


def _run(folder: Path) -> str:
    """The run that the cache in a folder was made for. Manifests are read once."""
    try:
        stamp = manifest_stamp(folder)
        with _lock:
            known = _known.get(str(folder))
        if known is not None and known[0] == stamp:
            return known[1]
        manifest = read_manifest(folder)
    except (CacheError, OSError):
        return ""
    run = run_of(manifest) if manifest is not None else ""
    with _lock:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[str(folder)] = (stamp, run)
    return run
