"""Jobs: long work that a page starts, such as verifying and copying a cache. Each job runs in its own thread, reports
its progress and can be canceled."""

import contextlib
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...dataset_cache import (
    CacheBusy,
    CopyReport,
    LossRefused,
    byte_count,
    current_publisher,
    duplicate,
    export,
    intake,
    is_link,
    plural,
    read_manifest,
    repair,
    travel,
    verify,
)
from ..library import forget_result
from ..outside import Refused, cut_text
from ..remotes import REMOTE_ROOTS
from .moves import move_folder

log = logging.getLogger("streamcache")

MAX_LISTED = 50
MAX_RUNNING = 4
SECONDS_BETWEEN = 0.25  # between two reports of the same job
_MAX_PROBLEMS = 200
_UNFINISHED = ".copy-"
_ABANDONED_SECONDS = 24 * 3600


class Canceled(Exception):
    """The page asked the job to stop."""


@dataclass
class Job:
    """A job as pages see it. `problem_count` includes problems that are not listed; `counts` is what it did."""

    id: str
    kind: str
    name: str
    to: str = ""
    state: str = "running"
    done: int = 0
    total: int = 0
    problems: list[dict[str, str]] = field(default_factory=list)
    problem_count: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    words: str = ""
    error: str = ""
    began: float = field(default_factory=time.time)
    ended: float | None = None
    left: float | None = None  # seconds, at the rate so far


class Watch:
    """Passed to the work of a job: reports progress and problems, and stops the work when the user cancels."""

    def __init__(self, job: Job, report: Callable[[Job], None]) -> None:
        self._job, self._report, self._reported, self._began = job, report, 0.0, time.monotonic()
        self.cancel = threading.Event()

    def __call__(self, done: int, total: int) -> None:
        """Report progress; raise Canceled if the user canceled the job."""
        self.check()
        self._job.done, self._job.total = done, max(total, done)
        spent = time.monotonic() - self._began
        self._job.left = spent * (self._job.total - done) / done if done and spent > 1 else None
        if time.monotonic() - self._reported >= SECONDS_BETWEEN:
            self._reported = time.monotonic()
            self._report(self._job)

    def check(self) -> None:
        if self.cancel.is_set():
            raise Canceled

    def count(self, **counts: int) -> None:
        self._job.counts.update(counts)

    def problem(self, kind: str, place: str, words: str) -> None:
        self._job.problem_count += 1
        if len(self._job.problems) < _MAX_PROBLEMS:
            self._job.problems.append({"kind": kind, "place": cut_text(place), "words": cut_text(words)})


Work = Callable[[Watch], str]  # returns the message to show at the end
Copy = Callable[[Path, Path, Watch], CopyReport]


class Jobs:
    """The jobs of this server, latest first. `report` is called with every job that made progress."""

    def __init__(self, report: Callable[[dict[str, Any]], None]) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._jobs: dict[str, tuple[Job, Watch]] = {}

    def start(self, kind: str, name: str, work: Work, to: str = "") -> dict[str, Any]:
        job = Job(secrets.token_hex(8), kind, name, to)
        watch = Watch(job, self._send)
        with self._lock:
            self._refuse_more(job)
            self._jobs[job.id] = (job, watch)
            for old in [each for each, (known, _) in self._jobs.items() if known.state != "running"][: -MAX_LISTED + 1]:
                del self._jobs[old]
        thread = threading.Thread(target=self._run, args=(job, watch, work), name=f"streamcache {kind}", daemon=True)
        thread.start()
        return asdict(job)

    def rows(self) -> list[dict[str, Any]]:
        with self._lock:
            return [asdict(job) for job, _ in reversed(self._jobs.values())][:MAX_LISTED]

    def cancel(self, number: str) -> None:
        """Ask a job to stop at its next report. A finished job stays as it is."""
        with self._lock:
            found = self._jobs.get(number)
        if found is None:
            raise Refused("no such job", 404)
        found[1].cancel.set()

    def _refuse_more(self, new: Job) -> None:
        running = [job for job, _ in self._jobs.values() if job.state == "running"]
        if any((job.kind, job.name, job.to) == (new.kind, new.name, new.to) for job in running):
            raise Refused(f"{new.kind} of {new.name} is already running", 409)
        if len(running) >= MAX_RUNNING:
            raise Refused(f"{MAX_RUNNING} jobs are already running; wait until one of them is done", 409)

    def _run(self, job: Job, watch: Watch, work: Work) -> None:
        try:
            watch.check()
            job.words = work(watch)
            job.state = "done"
        except Canceled:
            job.state = "cancelled"
        except ValueError as error:  # the base class of the pack's own errors
            job.state, job.error = "failed", cut_text(str(error))
        except Exception as error:
            log.exception("The job %s of %s failed", job.kind, job.name)
            job.state, job.error = "failed", cut_text(f"{type(error).__name__}: {error}")
        finally:
            job.ended = time.time()
            self._send(job)

    def _send(self, job: Job) -> None:
        self._report(asdict(job))


def verifying(folder: Path) -> Work:
    def work(watch: Watch) -> str:
        count, dropped = 0, set[int]()
        for problem in verify(folder, watch):
            watch.check()
            count += 1
            if problem.drops and problem.sample is not None:
                dropped.add(problem.sample)
                watch.count(dropped=len(dropped))
            affected = "" if problem.sample is None else f"sample {problem.sample} ({problem.source}): "
            watch.problem(problem.kind, problem.place, f"{affected}{problem.what}")
        return "No problems found" if not count else f"Problems: {count:,}"

    return work


def repairing(folder: Path, most: int, accept_loss: bool) -> Work:
    """Drop the damaged samples, if they are not more than `most`. If they are too many, the job lists them."""

    def work(watch: Watch) -> str:
        try:
            report = repair(folder, watch, accept_loss, most)
        except LossRefused as error:
            manifest = read_manifest(folder)
            watch.count(dropped=len(error.samples), samples=manifest.counts["samples"] if manifest else 0)
            for number, source in error.samples:
                watch.problem("dropped", source, f"sample {number}")
            raise
        forget_result(folder)
        watch.count(dropped=len(report.samples), entries=report.entries, shards=len(report.shards))
        return str(report)

    return work


def duplicating(folder: Path, target: Path, root: Path) -> Work:
    """Copy to `target` below `root`, as a new dataset with the same samples."""
    return _copying(duplicate, folder, target, root)


def exporting(folder: Path, target: Path, root: Path) -> Work:
    """Copy to `target` below `root`, as the same dataset."""
    return _copying(export, folder, target, root)


def travelling(carry: Callable[..., travel.TravelReport], folder: Path) -> Work:
    """Push, pull or sync a cache whose local side is `folder`."""

    def work(watch: Watch) -> str:
        report = carry(how=travel.Travel(progress=watch))
        REMOTE_ROOTS.forget()
        if report.action == "pull":
            forget_result(folder)
        watch.count(files=report.files, bytes=report.bytes, resumed=report.resumed)
        return str(report)

    return work


def adding(upload: intake.Upload, folder: Path, if_exists: str) -> Work:
    """Add what was uploaded to a folder of images."""

    def work(watch: Watch) -> str:
        added = upload.add_to(folder, if_exists, watch)
        watch.count(**{name: value for name, value in asdict(added).items() if isinstance(value, int)})
        for skipped in added.skipped:
            watch.problem("skipped", skipped.name, skipped.reason)
        return f"Added {plural(added.images, 'image')} and {plural(added.captions, 'caption')}"

    return work


def _copying(copy: Copy, folder: Path, target: Path, root: Path) -> Work:
    def work(watch: Watch) -> str:
        _remove_abandoned(root)
        # Under a hidden name until it is complete, so a canceled or failed copy never shows up.
        unfinished = root / f"{_UNFINISHED}{secrets.token_hex(8)}"
        try:
            report = copy(folder, unfinished, watch)
            if os.path.lexists(target):
                raise CacheBusy(f"the name {target.name} has been taken in the meantime; choose another name")
            target.parent.mkdir(parents=True, exist_ok=True)
            move_folder(unfinished, target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return f"Copied {plural(report.samples, 'sample')} ({byte_count(report.bytes)})"

    return work


def _age(path: Path) -> float:
    """Seconds since a folder changed. If its date is ahead of the clock, it counts as changed now, and gets old."""
    age = time.time() - path.stat().st_mtime
    if age < 0:
        with contextlib.suppress(OSError):
            os.utime(path)
    return age


def _remove_abandoned(root: Path) -> None:
    """Remove unfinished copies of servers that were killed over a day ago."""
    for path in root.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(FileNotFoundError):  # a copy that has just ended
            if is_link(path) or _age(path) < _ABANDONED_SECONDS:
                continue
            if current_publisher(path) is None:
                shutil.rmtree(path, ignore_errors=True)
