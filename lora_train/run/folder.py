"""The folder of a run: its name, its lock, run.json, and what happens if it exists or is missing."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...dataset_cache import (
    MarkerHeld,
    closest_name,
    free_name,
    is_locked,
    is_long_name,
    move_locked_folder,
    normal_form,
    replace_file,
    spelled,
    take_lock,
)
from ...errors import TrainError
from ..config import MODES
from ..ranks import Ranks
from .metrics import read_curves
from .run_files import list_names, open_run_file, read_run_file
from .saved_state import StateFolder

log = logging.getLogger("streamcache")

_FILES = ("run.json", "metrics.jsonl", "report.html", "loss.png", "samples.png", "time.png", "buckets.png")
LOCK = ".lock"
_FOLDERS = ("states", "samples", "events", "grid")
LOCK_SECONDS = 0.3  # to wait for the lock: checking whether it is held takes it for a moment
CLOCK_SECONDS = 60.0  # by which the clocks of two hosts may differ
_NAME = re.compile(r"[^\s./\\:*?\"<>|~][^/\\:*?\"<>|]*")
_LISTED = 3  # runs that are named if the one to resume is missing


@dataclass(frozen=True)
class Run:
    """The folder of a run, and the paths inside it."""

    folder: Path
    resume: bool = False
    begin: Callable[[], None] = field(default=lambda: None, compare=False)  # see `open_run`
    mode: str = "new"  # of `MODES`; without a saved state, "resume" starts at step 0

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
        """Where the finished LoRA is saved unless another path is given."""
        return self.folder / f"{self.name}.safetensors"

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    def states(self, keep: int = 2) -> StateFolder:
        return StateFolder(self.folder / "states", keep)

    def describe(self, **facts: Any) -> None:
        """Update run.json with these values; the run begins, if it has not."""
        self.begin()
        self.amend(**facts, updated=round(time.time(), 1))

    def amend(self, **facts: Any) -> None:
        """Change these values in run.json, and not when the run was updated."""
        self.restore({**read_run_json(self.folder), **facts, "name": self.name})

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Make these the content of run.json."""
        path = self.folder / "run.json"
        try:
            replace_file(path, json.dumps(facts, indent=1).encode())
        except OSError as error:
            raise TrainError(f"{path}: could not be written ({error.strerror}); free disk space, then resume") from None

    def unfinished_lora(self, final: Path) -> Path | None:
        """The unfinished LoRA that the run has written last, if it is one with this final name."""
        recorded = read_run_json(self.folder).get("lora")
        path = Path(recorded) if isinstance(recorded, str) else Path()
        return path if is_partial_lora(path, final.absolute()) else None

    def warn(self, words: str) -> None:
        """Log a warning, and add it to the notes in run.json. Without words, nothing."""
        if words:
            log.warning(words)
            self.note(words)

    def note(self, words: str) -> None:
        """Add a line to the notes in run.json."""
        before = read_run_json(self.folder).get("notes")
        self.describe(notes=f"{before}\n{words}" if before else words)


class FollowedRun(Run):
    """A run that another rank writes; here it is only read."""

    def describe(self, **facts: Any) -> None:
        pass

    def restore(self, facts: Mapping[str, Any]) -> None:
        pass

    def warn(self, words: str) -> None:
        pass


@contextmanager
def open_run(root: str | Path, name: str, mode: str = "new") -> Iterator[Run]:
    """Find the run's folder as `mode` asks, and lock it against other processes.

    Nothing is created, cleared or changed before `Run.begin`: a training that is refused leaves everything as it was.
    """
    root = Path(root)
    check_run_name(name)
    if mode not in MODES:
        raise TrainError(f'mode = "{mode}": expected one of {", ".join(MODES)}')
    chosen = free_name(name, lambda free: can_begin(root / spelled(root, free))) if mode == "new" else name
    folder = root / spelled(root, chosen)
    known = is_run(folder)
    if not known and _has_files(folder):
        raise TrainError(f"{folder}: not the folder of a run; give another name")
    if mode == "resume" and not known:
        raise TrainError(f'mode = "resume": {_describe_missing(root, name)}')
    check_run_name(folder.name, new=not known)
    with ExitStack() as stack:
        found = folder.exists()
        if found:
            stack.enter_context(_locked(folder))
            if mode == "new":
                _refuse_used(folder)
        resume = mode == "resume" and bool(StateFolder(folder / "states").files())
        if mode == "resume" and not resume:
            log.info("%s has no saved state; starting at step 0", folder.name)
        yield Run(folder, resume, _Beginning(folder, stack, locked=found, keep=mode == "resume"), mode)


@contextmanager
def open_run_together(root: Path, name: str, mode: str, ranks: Ranks) -> Iterator[Run]:
    """The run as rank 0 opens and locks it; the others follow, in the same folder."""
    with ExitStack() as stack:
        run = None
        with ranks.together():
            run = stack.enter_context(open_run(root, name, mode)) if ranks.leads else None
        found, resume = ranks.from_first((run.name, run.resume) if run else ("", False))
        yield run or FollowedRun(root / found, resume, mode=mode)


@dataclass
class _Beginning:
    """Creates or clears the folder of a run, once."""

    folder: Path
    stack: ExitStack
    locked: bool
    keep: bool
    done: bool = False

    def __call__(self) -> None:
        if self.done:
            return
        if not self.locked:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.stack.enter_context(_locked(self.folder))
            _refuse_used(self.folder)
        if not self.keep:
            _clear(self.folder)
        self.done = True


def can_begin(folder: Path) -> bool:
    """Whether a new run may take this folder: it is missing, empty, or of a run that ended before its first step."""
    try:
        return _is_unused(folder) and not is_run_locked(folder)
    except TrainError:  # it cannot be read now, and may be a trained run
        return False


def is_run(folder: Path) -> bool:
    """Whether this is the folder of a run. Raises TrainError if that cannot be read now."""
    return open_run_file(folder / "run.json") is not None


def latest_run(root: Path, name: str) -> str | None:
    """Of the runs `name`, `name-2`, `name-3`, …, the one that was written to last.

    If one is dated in the future, a clock was wrong, and the one that was begun last is taken.
    """
    own = re.compile(re.escape(normal_form(name)) + r"(?:-(\d+))?")
    numbers = {other: int(match[1] or 1) for other in list_names(root) if (match := own.fullmatch(normal_form(other)))}
    found = [other for other in numbers if is_run(root / other)]
    dates = {other: _number(read_run_json(root / other).get("updated")) for other in found}
    if max(dates.values(), default=0.0) > time.time() + CLOCK_SECONDS:
        dates = dict.fromkeys(found, 0.0)
    return max(found, key=lambda other: (dates[other], numbers[other]), default=None)


def list_runs(root: Path) -> list[str]:
    """The names of the runs below a folder, without those that cannot be read now."""
    return [name for name in list_names(root) if os.path.isfile(root / name / "run.json")]


def partial_lora(path: Path, step: int) -> Path:
    """The file of an unfinished LoRA: the final name, with the step that it was saved at."""
    return path.with_name(f"{path.stem}-step{step:08}{path.suffix}")


def is_partial_lora(path: Path, final: Path) -> bool:
    """Whether a file has the name of an unfinished LoRA with this final name."""
    pattern = rf"{re.escape(final.stem)}-step\d{{8,}}{re.escape(final.suffix)}"
    return path.parent == final.parent and re.fullmatch(pattern, path.name) is not None


def check_run_name(name: str, *, new: bool = False) -> None:
    """Refuse names that are not valid folder names on every system.

    The name of a new run must leave room for that of an unfinished LoRA, which earlier versions did not demand.
    """
    if not _NAME.fullmatch(name) or name != name.rstrip(". "):
        raise TrainError(f'name = "{name}": expected a plain folder name, for example my_run')
    if len(name) > 120 or is_long_name(partial_lora(Path(name), 0).name if new else name):
        length = f"{len(name)} characters, {len(name.encode(errors='surrogatepass'))} bytes in UTF-8"
        raise TrainError(f'name = "{name}": too long ({length}); give a shorter name')


def read_run_json(folder: Path) -> Mapping[str, Any]:
    """The content of run.json, or {} if it is missing or damaged. Raises TrainError if it cannot be read now."""
    try:
        found = json.loads(read_run_file(folder / "run.json") or b"{}")
    except TrainError:
        raise
    except (ValueError, RecursionError):
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


@contextmanager
def hold_run(folder: Path) -> Iterator[Callable[[Path], None]]:
    """Inside the `with`, no other process can train this run; what it gives moves its folder. Raises TimeoutError if
    one is training it."""
    lock = take_lock(folder / LOCK, LOCK_SECONDS)
    try:
        yield lambda target: move_locked_folder(folder, target, lock)
    finally:
        lock.release()


def _describe_missing(root: Path, name: str) -> str:
    known = list_runs(root)
    near = closest_name(name, known)
    latest = sorted(known, key=lambda other: -_number(_peek(root / other).get("updated")))[:_LISTED]
    listed = f"; the latest runs are {', '.join(latest)}" if latest and not near else ""
    return f'{root} has no run "{name}"{near or listed}. To start one, set mode = "new"'


def _peek(folder: Path) -> Mapping[str, Any]:
    try:
        return read_run_json(folder)
    except TrainError:
        return {}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and abs(value) < float("inf") else 0.0


def _has_files(folder: Path) -> bool:
    """Whether there is anything in a folder besides its lock, which on some drives is a marker `.lock.…`."""
    return any(not name.startswith(LOCK) for name in list_names(folder))


def _is_unused(folder: Path) -> bool:
    if not _has_files(folder):
        return True
    saved, described = StateFolder(folder / "states").files(), read_run_json(folder)
    trained = saved or described.get("step") or read_curves(folder / "metrics.jsonl").losses
    return is_run(folder) and not trained


def _refuse_used(folder: Path) -> None:
    """Ask again once the lock is held: before, another process may have trained here."""
    if not _is_unused(folder):
        raise TrainError(f"{folder}: another process has just used this name; start again")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_run(folder))
        except MarkerHeld as error:  # this drive has no file locks
            message = "another process is training this run; wait for it, or if none is, remove"
            raise TrainError(f"{folder}: {message} {error}") from None
        except TimeoutError:
            message = "another process is training this run; wait for it, or give another name"
            raise TrainError(f"{folder}: {message}") from None
        except FileNotFoundError:
            raise TrainError(f"{folder}: another process has just moved this run; start again") from None
        except OSError as error:
            raise TrainError(f"{folder}: cannot be locked ({error.strerror}); make it writable") from None
        yield


def _clear(folder: Path) -> None:
    """Delete the files of a run, and no others."""
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    for name in _FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)
    final = folder / f"{folder.name}.safetensors"
    for path in [path for path in folder.iterdir() if path == final or is_partial_lora(path, final)]:
        path.unlink()
