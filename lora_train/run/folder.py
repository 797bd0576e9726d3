"""A run: a named folder with its settings, states, metrics, samples and report, and what to do when it exists."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from ...dataset_cache import free_name, is_locked
from ..config import MODES
from ..errors import TrainError
from .saved_state import StateFolder

log = logging.getLogger("streamcache")

_OWN = ("run.json", "metrics.jsonl", "report.html", "loss.png", "samples.png", "time.png", "buckets.png")
LOCK = ".lock"
_OWN_FOLDERS = ("states", "samples", "events")
PATIENCE_SECONDS = 0.3  # for a lock: who looks whether it is held has it for a moment
_NAME = re.compile(r"[^\s./\\:*?\"<>|~][^/\\:*?\"<>|]*")
_MAX_BYTES = 240  # file systems take 255, and files are called after a run


@dataclass(frozen=True)
class Run:
    """The folder of a run and where everything lies in it."""

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
        """The trained file, unless it is asked for elsewhere."""
        return self.folder / f"{self.name}.safetensors"

    def states(self, keep: int = 2) -> StateFolder:
        return StateFolder(self.folder / "states", keep)

    def describe(self, **facts: Any) -> None:
        """Write run.json, in one step."""
        path = self.folder / "run.json"
        temporary = path.with_suffix(".part")
        body = {**read_run_json(self.folder), **facts, "name": self.name, "updated": round(time.time(), 1)}
        temporary.write_text(json.dumps(body, indent=1), encoding="utf-8")
        os.replace(temporary, path)


@contextmanager
def open_run(root: str | Path, name: str, mode: str = "new") -> Iterator[Run]:
    """The run's folder, made ready for its mode and held against a second trainer."""
    root = Path(root)
    check_run_name(name)
    if mode not in MODES:
        raise TrainError(f'mode = "{mode}": expected one of {", ".join(MODES)}')
    folder = _free(root, name) if mode == "new" else root / name
    check_run_name(folder.name)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / "run.json").exists():
        raise TrainError(f"{folder}: is no run's folder; give another name")
    with _held(folder):
        if mode == "overwrite":
            _clear(folder)
        resume = mode == "resume" and bool(StateFolder(folder / "states").files())
        if mode == "resume" and not resume:
            log.info("%s has no saved state yet; the run starts at step 0", folder.name)
        run = Run(folder, resume)
        # Who held it before was killed: should this training not come to its first step, nobody trains it either.
        cut_off = read_run_json(folder).get("status") == "running"
        run.describe(**{"status": "interrupted"} if cut_off else {})
        yield run


def check_run_name(name: str) -> None:
    """A run's name is one folder's name on every system."""
    too_long = len(name) > 120 or len(name.encode("utf-8", "surrogatepass")) > _MAX_BYTES
    if too_long or not _NAME.fullmatch(name) or name != name.rstrip(". "):
        raise TrainError(f'name = "{name}": expected a plain folder name, such as my_run')


def read_run_json(folder: Path) -> Mapping[str, Any]:
    """What run.json says, or nothing."""
    try:
        found = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_run_locked(folder: Path) -> bool:
    """Whether somebody trains this run now, in this process or another."""
    try:
        return is_locked(folder / LOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # nobody can tell


def _free(root: Path, name: str) -> Path:
    """`name`, or `name-2`, `name-3`, … if it is used already."""
    return root / free_name(name, lambda free: not (root / free).exists() or not any((root / free).iterdir()))


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    lock = filelock.FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=PATIENCE_SECONDS)
    except filelock.Timeout:
        raise TrainError(f"{folder}: another process trains this run; wait for it, or give another name") from None
    try:
        yield
    finally:
        lock.release()


def _clear(folder: Path) -> None:
    """Remove what a run writes, and nothing else that lies there."""
    for name in _OWN:
        (folder / name).unlink(missing_ok=True)
    for name in _OWN_FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / f"{folder.name}.safetensors").unlink(missing_ok=True)
