"""Upkeep: the long work that pages start on a cache: verifying it, and copying it."""

import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from ...dataset_cache import CacheBusy, CopyReport, current_publisher, duplicate, export, is_link, verify
from .jobs import Watch, Work
from .moves import move_folder

Copy = Callable[..., CopyReport]
_UNFINISHED = ".copy-"
_ABANDONED_SECONDS = 24 * 3600


def verifying(folder: Path) -> Work:
    def work(watch: Watch) -> str:
        count = 0
        for problem in verify(folder, watch):
            watch.check()
            count += 1
            who = "" if problem.sample is None else f"sample {problem.sample} ({problem.source}): "
            watch.problem(problem.kind, problem.place, f"{who}{problem.what}")
        return "Everything is as it should be" if not count else f"Problems: {count:,}"

    return work


def duplicating(folder: Path, target: Path, root: Path) -> Work:
    """A dataset of its own that starts with the same samples, at `target` below `root`."""
    return _copying(duplicate, folder, target, root)


def exporting(folder: Path, target: Path, root: Path) -> Work:
    """The same dataset at `target` below `root`."""
    return _copying(export, folder, target, root)


def _copying(copy: Copy, folder: Path, target: Path, root: Path) -> Work:
    def work(watch: Watch) -> str:
        _remove_abandoned(root)
        # Under a hidden name until it is whole: what was cancelled or broke off leaves nothing to be seen.
        unfinished = root / f"{_UNFINISHED}{secrets.token_hex(8)}"
        try:
            report = copy(folder, unfinished, watch)
            if os.path.lexists(target):
                raise CacheBusy(f"the name {target.name} was taken meanwhile; choose another name")
            target.parent.mkdir(parents=True, exist_ok=True)
            move_folder(unfinished, target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return f"Copied {report.samples:,} samples ({report.bytes / 1e6:,.1f} MB)"

    return work


def _remove_abandoned(root: Path) -> None:
    """Copies whose server was killed long ago."""
    for path in root.glob(f"{_UNFINISHED}*"):
        if is_link(path) or time.time() - path.stat().st_mtime < _ABANDONED_SECONDS:
            continue
        if current_publisher(path) is None:
            shutil.rmtree(path, ignore_errors=True)
