"""Jobs: long work that a page started. Each runs in a thread of its own, tells how far it is, and can be cancelled."""

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from .refusals import Refused
from .untrusted import cut_text

log = logging.getLogger("streamcache")

KEPT = 50
AT_ONCE = 4
SECONDS_BETWEEN = 0.25  # two words of the same job
_PROBLEMS = 200


class Cancelled(Exception):
    """The page asked the job to stop."""


@dataclass
class Job:
    """What a page is told of a job. `problem_count` counts also the problems that are not listed."""

    id: str
    kind: str
    name: str
    to: str = ""
    state: str = "running"
    done: int = 0
    total: int = 0
    problems: list[dict[str, str]] = field(default_factory=list)
    problem_count: int = 0
    words: str = ""
    error: str = ""
    began: float = field(default_factory=time.time)
    ended: float | None = None


class Watch:
    """What the work itself sees of its job."""

    def __init__(self, job: Job, tell: Callable[[Job], None]) -> None:
        self._job, self._tell, self._told = job, tell, 0.0
        self.cancel = threading.Event()

    def __call__(self, done: int, total: int) -> None:
        """Say how far the work is, and stop it here if that was asked for."""
        self.check()
        self._job.done, self._job.total = done, max(total, done)
        if time.monotonic() - self._told >= SECONDS_BETWEEN:
            self._told = time.monotonic()
            self._tell(self._job)

    def check(self) -> None:
        if self.cancel.is_set():
            raise Cancelled

    def problem(self, kind: str, place: str, words: str) -> None:
        self._job.problem_count += 1
        if len(self._job.problems) < _PROBLEMS:
            self._job.problems.append({"kind": kind, "place": cut_text(place), "words": cut_text(words)})


Work = Callable[[Watch], str]  # returns what to say at the end


class Jobs:
    """The jobs of this server, the last of them first. `tell` is called with each that got further."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._jobs: dict[str, tuple[Job, Watch]] = {}

    def start(self, kind: str, name: str, work: Work, to: str = "") -> dict[str, Any]:
        job = Job(secrets.token_hex(8), kind, name, to)
        watch = Watch(job, self._told)
        with self._lock:
            self._refuse_more(job)
            self._jobs[job.id] = (job, watch)
            for old in [each for each, (known, _) in self._jobs.items() if known.state != "running"][: -KEPT + 1]:
                del self._jobs[old]
        thread = threading.Thread(target=self._run, args=(job, watch, work), name=f"streamcache {kind}", daemon=True)
        thread.start()
        return asdict(job)

    def rows(self) -> list[dict[str, Any]]:
        with self._lock:
            return [asdict(job) for job, _ in reversed(self._jobs.values())][:KEPT]

    def cancel(self, number: str) -> None:
        """A job stops at the next thing it says; one that is over stays as it is."""
        with self._lock:
            found = self._jobs.get(number)
        if found is None:
            raise Refused("there is no such job", 404)
        found[1].cancel.set()

    def _refuse_more(self, new: Job) -> None:
        running = [job for job, _ in self._jobs.values() if job.state == "running"]
        if any((job.kind, job.name, job.to) == (new.kind, new.name, new.to) for job in running):
            raise Refused(f"{new.kind} of {new.name} is under way already", 409)
        if len(running) >= AT_ONCE:
            raise Refused(f"{AT_ONCE} jobs are under way already; wait until one of them is done", 409)

    def _run(self, job: Job, watch: Watch, work: Work) -> None:
        try:
            watch.check()
            job.words = work(watch)
            job.state = "done"
        except Cancelled:
            job.state = "cancelled"
        except ValueError as error:  # the pack's own errors are kin of it
            job.state, job.error = "failed", cut_text(str(error))
        except Exception as error:
            log.exception("The job %s of %s failed", job.kind, job.name)
            job.state, job.error = "failed", cut_text(f"{type(error).__name__}: {error}")
        finally:
            job.ended = time.time()
            self._told(job)

    def _told(self, job: Job) -> None:
        self._tell(asdict(job))
