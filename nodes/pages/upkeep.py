"""Upkeep: the long work that pages start on a cache: verifying it, and copying it."""

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from ...dataset_cache.copies import CopyReport, duplicate, export
from ...dataset_cache.errors import CacheBusy
from ...dataset_cache.verify import verify
from .jobs import Watch, Work
from .moves import move_folder

Copy = Callable[..., CopyReport]


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


def duplicating(folder: Path, target: Path) -> Work:
    """A dataset of its own that starts with the same samples."""
    return _copying(duplicate, folder, target)


def exporting(folder: Path, target: Path) -> Work:
    """The same dataset in another place."""
    return _copying(export, folder, target)


def _copying(copy: Copy, folder: Path, target: Path) -> Work:
    def work(watch: Watch) -> str:
        # Under a hidden name until it is whole: what was cancelled or broke off leaves nothing to be seen.
        unfinished = target.with_name(f".copy-{secrets.token_hex(8)}")
        try:
            report = copy(folder, unfinished, watch)
            if os.path.lexists(target):
                raise CacheBusy(f"the name {target.name} was taken meanwhile; choose another name")
            move_folder(unfinished, target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return f"Copied {report.samples:,} samples ({report.bytes / 1e6:,.1f} MB)"

    return work
