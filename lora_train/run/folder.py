"""The folder of a run: its name, its lock, run.json, and what happens if it already exists."""

from __future__ import annotations

import json
import logging
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from ...dataset_cache import free_name, is_locked, replace_file
from ..config import MODES
from ..errors import TrainError
from .saved_state import StateFolder

log = logging.getLogger("streamcache")

_FILES = ("run.json", "metrics.jsonl", "report.html", "loss.png", "samples.png", "time.png", "buckets.png")
LOCK = ".lock"
_FOLDERS = ("states", "samples", "events")
LOCK_SECONDS = 0.3  # to wait for the lock: checking whether it is held takes it for a moment
_NAME = re.compile(r"[^\s./\\:*?\"<>|~][^/\\:*?\"<>|]*")
_MAX_BYTES = 240  # file systems allow 255, and files are named after the run with an ending


@dataclass(frozen=True)
class Run:
    """The folder of a run, and the paths inside it."""

    folder: Path
    resume: bool = False

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        return self.folder / "samples"

    @property
    def lora(self) -> Path:
        """Where the LoRA is saved unless another path is given."""
        return self.folder / f"{self.name}.safetensors"

    def states(self, keep: int = 2) -> StateFolder:
        return StateFolder(self.folder / "states", keep)

    def describe(self, **facts: Any) -> None:
        """Update run.json with these values."""
        body = {**read_run_json(self.folder), **facts, "name": self.name, "updated": round(time.time(), 1)}
        replace_file(self.folder / "run.json", json.dumps(body, indent=1).encode())


@contextmanager
def open_run(root: str | Path, name: str, mode: str = "new") -> Iterator[Run]:
    """Open the run's folder as `mode` asks, and lock it against other processes."""
    root = Path(root)
    check_run_name(name)
    if mode not in MODES:
        raise TrainError(f'mode = "{mode}": expected one of {", ".join(MODES)}')
    folder = _free(root, name) if mode == "new" else root / name
    check_run_name(folder.name)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / "run.json").exists():
        raise TrainError(f"{folder}: not the folder of a run; give another name")
    with _locked(folder):
        if mode == "overwrite":
            _clear(folder)
        resume = mode == "resume" and bool(StateFolder(folder / "states").files())
        if mode == "resume" and not resume:
            log.info("%s has no saved state; starting at step 0", folder.name)
        run = Run(folder, resume)
        # The previous process was killed. Mark the run as interrupted now, in case we fail before our first step.
        killed = read_run_json(folder).get("status") == "running"
        run.describe(**{"status": "interrupted"} if killed else {})
        yield run


def check_run_name(name: str) -> None:
    """Refuse names that are not valid folder names on every system."""
    too_long = len(name) > 120 or len(name.encode("utf-8", "surrogatepass")) > _MAX_BYTES
    if too_long or not _NAME.fullmatch(name) or name != name.rstrip(". "):
        raise TrainError(f'name = "{name}": expected a plain folder name, for example my_run')


def read_run_json(folder: Path) -> Mapping[str, Any]:
    """The content of run.json, or {} if it is missing or damaged."""
    try:
        found = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_run_locked(folder: Path) -> bool:
    """Whether a process, this one or another, is training this run."""
    try:
        return is_locked(folder / LOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # unknown: assume that it is


def _free(root: Path, name: str) -> Path:
    """`name`, or `name-2`, `name-3`, … if it is used already."""
    return root / free_name(name, lambda free: not (root / free).exists() or not any((root / free).iterdir()))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = filelock.FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=LOCK_SECONDS)
    except filelock.Timeout:
        raise TrainError(f"{folder}: another process is training this run; wait for it, or give another name") from None
    try:
        yield
    finally:
        lock.release()


def _clear(folder: Path) -> None:
    """Delete the files of a run, and no others."""
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    for name in _FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / f"{folder.name}.safetensors").unlink(missing_ok=True)
