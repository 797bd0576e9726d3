"""A job: one training in a queue, as its file stores it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ...errors import TrainError

VERSION = 1
WAITING, RUNNING, DONE, FAILED, CANCELLED = STATUSES = ("waiting", "running", "done", "failed", "cancelled")
_TEXTS = ("name", "out", "runs", "folder", "status")


@dataclass(frozen=True)
class Job:
    """A training: the arguments of `streamcache train` and its settings, and how far it is."""

    name: str  # of its run
    out: str  # the LoRA file
    runs: str  # the folder of its run
    folder: str  # where it was added: other paths in the arguments start there
    arguments: tuple[str, ...]  # flags without those of settings
    settings: Mapping[str, Any]
    status: str = WAITING
    added: float = 0.0
    started: float = 0.0  # for the first time
    ended: float = 0.0
    starts: int = 0  # since the run last saved a state
    step: int = 0  # of the last saved state when it was last started
    worker: str = ""
    problem: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)  # what `streamcache train --json` prints

    @property
    def is_over(self) -> bool:
        return self.status not in (WAITING, RUNNING)

    @property
    def run(self) -> Path:
        """The folder of its run."""
        return Path(self.runs) / self.name


def write_job(job: Job) -> bytes:
    return json.dumps({"version": VERSION, **asdict(job)}, indent=1, ensure_ascii=False).encode(errors="surrogatepass")


def read_job(content: bytes, place: str) -> Job:
    """The job in a file. Every error starts with `place`."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise TrainError(f"{place}: is not a job; remove it and add the training again") from None
    version = found.get("version") if isinstance(found, dict) else None
    if type(version) is int and version > VERSION:
        raise TrainError(f"{place}: is a job of format {version}, this version reads {VERSION}; update StreamCache")
    try:
        names = {one.name for one in fields(Job)}
        values = {name: value for name, value in found.items() if name in names}
        job = Job(**{**values, "arguments": tuple(found["arguments"]), "settings": dict(found["settings"])})
    except (AttributeError, KeyError, TypeError, ValueError):
        raise TrainError(f"{place}: is not a job; remove it and add the training again") from None
    valid = version == VERSION and job.status in STATUSES
    valid &= all(isinstance(getattr(job, name), str) for name in _TEXTS)
    valid &= all(isinstance(text, str) for text in job.arguments)
    valid &= type(job.starts) is int and type(job.step) is int
    valid &= all(isinstance(when, (int, float)) for when in (job.added, job.started, job.ended))
    if not valid:
        raise TrainError(f"{place}: is not a job; remove it and add the training again")
    return job
