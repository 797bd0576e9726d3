"""A queue: a folder with one file per job, in order.

A worker owns the job whose lock it holds. The system frees the lock of a killed worker, and the next one goes on with
the job. Files are replaced in one step, so a job is there whole or not at all.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ...dataset_cache import CacheError, Lock, free_name, is_locked, replace_file, take_lock
from ...errors import TrainError
from ..run import StateFolder, can_begin, open_run_file, read_from, read_run_json
from .job import CANCELLED, RUNNING, WAITING, Job, read_job, write_job

MOST_STARTS = 3  # of a job whose run saves no state in between
_FILE = re.compile(r"(\d{6,})\.json")
_ADDING_SECONDS = 30.0  # to wait for others that add jobs
_LOOKING_SECONDS = 0.1  # another process may look at the same job


@dataclass(frozen=True)
class Claim:
    """A job that this process owns, until `end`."""

    queue: JobQueue
    number: int
    job: Job

    @property
    def cancelled(self) -> bool:
        """Whether it was asked to stop."""
        return self.queue.file(self.number, "cancel").exists()

    @property
    def turn(self) -> Path:
        """The lock of its training, which may outlive the worker for a moment."""
        return self.queue.file(self.number, "turn")

    @property
    def begun(self) -> bool:
        """Whether its training has begun its run: the folder may have another run from before."""
        updated = read_run_json(self.job.run).get("updated")
        return bool(self.job.started) and isinstance(updated, (int, float)) and updated >= self.job.started

    def start(self, worker: str) -> Claim:
        """Record that its training starts. It fails if that happened too often without progress."""
        job, step = self.job, self._saved_step()
        starts = job.starts + 1 if job.step == step else 1
        if starts > MOST_STARTS:
            problem = f"was started {MOST_STARTS} times and ended each time before it saved a state"
            raise TrainError(f"{job.problem}; {problem}" if job.problem else problem)
        began = job.started or round(time.time() - 0.05, 1)  # as run.json rounds it
        return self._write(replace(job, status=RUNNING, starts=starts, step=step, started=began, worker=worker))

    def put_back(self, problem: str = "") -> None:
        """It waits again, in its place. Only a start that ended with a problem counts."""
        starts = self.job.starts if problem else max(self.job.starts - 1, 0)
        self._write(replace(self.job, status=WAITING, worker="", problem=problem, starts=starts))

    def end(self, status: str, **facts: object) -> None:
        """Record how it ended: DONE, FAILED or CANCELLED."""
        self._write(replace(self.job, status=status, ended=time.time(), **facts))  # pyright: ignore[reportArgumentType]
        for kind in ("cancel", "turn"):
            with suppress(OSError):
                self.queue.file(self.number, kind).unlink()

    def _write(self, job: Job) -> Claim:
        replace_file(self.queue.file(self.number), write_job(job))
        return replace(self, job=job)

    def _saved_step(self) -> int:
        """The step of the last state that its own run has saved."""
        files = StateFolder(self.job.run / "states").files() if self.begun else []
        return int(re.sub(r"\D", "", files[-1].stem) or 0) if files else 0


class JobQueue:
    """The folder of a queue."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def file(self, number: int, kind: str = "json") -> Path:
        return self.folder / f"{number:06}.{kind}"

    def numbers(self) -> list[int]:
        """The numbers of the jobs, in order."""
        try:
            names = [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise TrainError(f"{self.folder}: cannot be read ({error.strerror}); give the folder of a queue") from None
        return sorted(int(match[1]) for name in names if (match := _FILE.fullmatch(name)))

    def read(self, number: int) -> Job | None:
        """A job, or None if it is gone. Raises TrainError if its file is not one."""
        file = open_run_file(self.file(number))
        return None if file is None else read_job(read_from(file), str(self.file(number)))

    def add(self, job: Job) -> tuple[int, Job]:
        """Add a job at the end; returns its number, and the job with the name that its run will have.

        Two jobs that wait never have the same run or write the same file.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._adding():
            numbers = self.numbers()
            others = {number: other for number in numbers if (other := self._peek(number)) and not other.is_over}
            for number, other in others.items():
                if other.out == job.out:
                    raise TrainError(f"{job.out}: job {number} writes this file; give another name, or cancel that job")
            taken = {other.name for other in others.values() if other.runs == job.runs}
            mode = job.settings.get("mode", "new")
            if mode == "new":
                runs = Path(job.runs)
                name = free_name(job.name, lambda name: name not in taken and can_begin(runs / name))
                job = replace(job, name=name)
            elif job.name in taken:
                raise TrainError(f"{job.run}: another job trains this run; wait for it, or cancel it")
            number = max(numbers, default=0) + 1
            job = replace(job, status=WAITING, added=time.time())
            replace_file(self.file(number), write_job(job))
        return number, job

    @contextmanager
    def claim(self) -> Iterator[Claim | None]:
        """The first job that waits, or whose worker has died; None if there is none. No other process has it."""
        for number in self.numbers():
            job = self._peek(number)
            if job is None or job.is_over:
                continue
            try:
                lock = take_lock(self.file(number, "lock"), _LOOKING_SECONDS)
            except TimeoutError:
                continue
            try:
                claim = self._claimable(number)
                if claim is not None:
                    yield claim
                    return
            finally:
                self._release(number, lock)
        yield None

    def cancel(self, number: int) -> bool:
        """End a job that no worker has (True), or ask the worker of a running one to stop after its step (False).

        One that has never started is removed. One that has leaves a run, so it stays in the list, as cancelled.
        """
        self._check_open(number)
        try:
            lock = take_lock(self.file(number, "lock"), _LOOKING_SECONDS)
        except TimeoutError:
            replace_file(self.file(number, "cancel"), b"")
            return False
        try:
            job = self._check_open(number)  # again, now that it is held: it may have ended meanwhile
            if job.started:
                Claim(self, number, job).end(CANCELLED)
                return True
            for kind in ("json", "cancel", "turn"):
                with suppress(OSError):
                    self.file(number, kind).unlink()
        finally:
            self._release(number, lock)
        return True

    def is_claimed(self, number: int) -> bool:
        """Whether a worker has the job."""
        try:
            return is_locked(self.file(number, "lock"))
        except OSError:
            return False

    def _check_open(self, number: int) -> Job:
        """Refuse a job that is not there, or is over."""
        job = self.read(number)
        if job is None:
            raise TrainError(f"{self.folder}: has no job {number}; streamcache queue list shows them")
        if job.is_over:
            raise TrainError(f"job {number} has ended already ({job.status})")
        return job

    def _claimable(self, number: int) -> Claim | None:
        """The job again, now that it is held: another worker may have ended it, or a person cancelled it."""
        job = self._peek(number)
        if job is None or job.is_over:
            return None
        claim = Claim(self, number, job)
        if claim.cancelled:
            claim.end(CANCELLED)
            return None
        return claim

    def _release(self, number: int, lock: Lock) -> None:
        """Release a job; the file of its lock goes with it, before another process can hold it."""
        job = self._peek(number)
        if job is None or job.is_over:
            with suppress(OSError):  # Windows keeps it
                self.file(number, "lock").unlink()
        lock.release()

    def _peek(self, number: int) -> Job | None:
        try:
            return self.read(number)
        except (TrainError, CacheError):
            return None

    @contextmanager
    def _adding(self) -> Iterator[None]:
        path = self.folder / "add.lock"
        try:
            lock = take_lock(path, _ADDING_SECONDS)
        except TimeoutError as error:
            raise TrainError(f"{path}: another process is adding a job ({error}); try again") from None
        try:
            yield
        finally:
            lock.release()
