"""Bringing a saved cache to a registered remote root, for nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ...dataset_cache import Address, CacheError, byte_count, roots, travel
from ..library import Saved, Watcher, remote_place
from .roots import REMOTE_ROOTS

NO_ROOT = "[none]"


def root_names() -> list[str]:
    """The registered roots as choices; none if their list cannot be read, which is said when one is used."""
    try:
        return sorted(roots())
    except CacheError:
        return []


def push_target(root: str, name: str) -> Address | None:
    """Where a cache of this name goes at a registered root; None if it stays here.

    A cache that was pulled is called `studio/cats` here: it goes back to where it was.
    """
    if root in ("", NO_ROOT):
        return None
    if not isinstance(root, str) or "/" in root or "\\" in root:
        raise CacheError(f"push_to: {str(root)[:60]!r} is not a registered root; choose one from the list")
    return remote_place(f"{root}/{name.removeprefix(f'{root}/')}")


def push_saved(saved: Saved, name: str, path: Path, target: Address, watch: Watcher) -> Saved:
    """Push what was just saved. If that fails the save stays: the next run pushes it."""

    def progress(done: int, total: int) -> None:
        watch(done, total, f"Pushing {byte_count(done)} of {byte_count(total)}")

    try:
        report = travel.push(path, target, travel.Travel(progress=progress))
    except CacheError as error:
        raise CacheError(f"saved here as {name}, not pushed: {error}") from error
    REMOTE_ROOTS.forget()
    facts: dict[str, Any] = {**saved.facts, "pushed": {"to": str(target), "files": report.files, "bytes": report.bytes}}
    line = f"Pushed {byte_count(report.bytes)} to {target}" if report.files else f"Nothing to push: {target} has it"
    return replace(saved, lines=(*saved.lines, line), facts=facts)
