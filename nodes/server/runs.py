"""Training runs on pages: the list of their folders, and one run with its curves, settings and sample images."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...lora_train import Run, check_run_name, is_run_locked, read_run_json
from ..library import contained
from .curves import CurveReader
from .live_runs import LiveRun, LiveRuns
from .untrusted import LATEST, Refused, as_count, as_dict, as_number, cut, cut_text

MAX_RUNS = 500  # listed, latest first
MAX_SAMPLES = 2000  # images per run
MAX_REPORT = 256 << 20
TAIL_BYTES = 4096
REPORT = "report.html"
ENDS = ("done", "stopped", "interrupted", "failed")
_SAMPLE = re.compile(r"step-(\d{1,12})-(\d{1,4})\.png")
_STATE = re.compile(r"step-(\d{1,12})\.safetensors")
_STEP = re.compile(rb'"step": (\d+), "epoch"')


@dataclass(frozen=True)
class RunPlaces:
    """The folders of runs, LoRAs and caches."""

    runs: Path
    loras: Path
    caches: Sequence[Path] = ()


@dataclass(frozen=True)
class SampleImage:
    """The bytes of a sample image and its modification time."""

    data: bytes
    mtime: str


@dataclass
class Runs:
    """All runs below a folder."""

    places: RunPlaces
    live: LiveRuns
    reader: CurveReader = field(default_factory=CurveReader)

    def rows(self, client: str = "") -> list[dict[str, Any]]:
        """One row per run. Only the page `client` learns which of its nodes a run belongs to."""
        if not self.places.runs.is_dir():
            return []
        below = [Path(entry.path) for entry in os.scandir(self.places.runs) if entry.is_dir(follow_symlinks=False)]
        folders = [f for f in below if os.path.isfile(f / "run.json") and f.name[0] != "."]
        found = [self.row(folder, client) for folder in folders]
        return sorted(found, key=lambda row: (not row["live"], -row["updated"]))[:MAX_RUNS]

    def row(self, folder: Path, client: str = "") -> dict[str, Any]:
        described, live = read_run_json(folder), self.live.find(folder.name)
        status = _status(folder, described, live)
        row = {
            "name": folder.name,
            "status": status,
            "live": live is not None,
            "node": live.node if live is not None and client and live.client == client else None,
            "step": _step(folder, described, status),
            "steps": as_count(described.get("steps")),
            "updated": _updated(folder, described),
            "dataset": self._dataset(described.get("dataset")),
            "lora": self._lora(folder.name),
            "saved_step": _saved_step(folder) if status == "interrupted" else 0,
            "problem": cut_text(str(described.get("problem") or "")) if status == "failed" else "",
            "notes": cut_text(str(described.get("notes") or "")),
        }
        return row if live is None else {**row, **live.to_json(), "updated": round(time.time(), 1)}

    def describe(self, name: str, points: int, smoothing: float, client: str = "") -> dict[str, Any]:
        """One run with its curves, settings and sample images."""
        folder = self.folder(name)
        live, run = self.live.find(name), Run(folder)
        settings = as_dict(read_run_json(folder).get("config"))
        report = folder / REPORT
        return {
            "run": self.row(folder, client),
            "settings": cut(settings),
            "curves": self.reader.curves(run.metrics, points, smoothing, list(live.recent) if live else ()),
            "samples": list_samples(run.samples),
            "lora": self._lora(name),
            "report": f"{self.places.runs.name}/{name}/{report.name}" if report.is_file() else "",
        }

    def sample(self, name: str, file: str) -> SampleImage:
        """A sample image. A later run may write another one under the same name."""
        if not _SAMPLE.fullmatch(file):
            raise Refused("file: expected a name such as step-00000100-0.png")
        path = contained(self.folder(name), ["samples", file], file)
        try:
            with open(path, "rb") as opened:
                return SampleImage(opened.read(), str(os.fstat(opened.fileno()).st_mtime_ns))
        except FileNotFoundError:
            raise Refused(f"{name} has no sample image {file}", 404) from None

    def report(self, name: str) -> bytes:
        """The report page that the trainer writes at the end of a run."""
        path = contained(self.folder(name), [REPORT], REPORT)
        try:
            if path.stat().st_size > MAX_REPORT:
                raise Refused(f"the report of {name} is larger than {MAX_REPORT >> 20} MiB", 409)
            return path.read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            raise Refused(f"{name} has no report", 404) from None

    def folder(self, name: str) -> Path:
        """The folder of a run. Names that point elsewhere are refused."""
        check_run_name(name)
        folder = contained(self.places.runs, [name], name)
        if not (folder / "run.json").is_file():
            raise Refused(f"no such run: {name}", 404)
        return folder

    def idle_folder(self, name: str) -> Path:
        """The folder of a run; refused while it is training."""
        folder = self.folder(name)
        if self.live.find(name) is not None or is_run_locked(folder):
            raise Refused(f"{name} is training; stop it first", 409)
        return folder

    def _lora(self, name: str) -> str:
        file = f"{name}.safetensors"
        return file if os.path.isfile(self.places.loras / file) else ""

    def _dataset(self, path: Any) -> str:
        """The name under which nodes load the cache, or its folder's name if it is not below a root."""
        if not isinstance(path, str) or not path:
            return ""
        for root in self.places.caches:
            if Path(path).is_relative_to(root):
                return cut_text(Path(path).relative_to(root).as_posix())
        return cut_text(Path(path).name)


def list_samples(folder: Path) -> list[dict[str, Any]]:
    """The sample images of a run by step, then by prompt."""
    found = [match for path in folder.glob("step-*.png") if (match := _SAMPLE.fullmatch(path.name))]
    rows = sorted((int(match[1]), int(match[2]), match[0]) for match in found)
    return [
        {"step": step, "prompt": prompt, "file": file, "mtime": sample_mtime(folder / file)}
        for step, prompt, file in rows[-MAX_SAMPLES:]
    ]


def sample_mtime(path: Path) -> str:
    """Distinguishes an image from one of an earlier run with the same name. A text, as JavaScript numbers cannot hold
    nanoseconds."""
    try:
        return str(path.stat().st_mtime_ns)
    except OSError:  # removed meanwhile
        return ""


def _status(folder: Path, described: Mapping[str, Any], live: LiveRun | None) -> str:
    if live is not None:
        return "running"
    status = described.get("status")
    if status not in (None, "running"):
        return status if status in ENDS else "failed"
    if is_run_locked(folder):
        return "running"
    # Its process was killed; without a status, before its first step.
    return "interrupted" if status else "failed"


def _step(folder: Path, described: Mapping[str, Any], status: str) -> int:
    if status not in ("running", "interrupted") and "step" in described:
        return as_count(described["step"])
    found = _STEP.findall(_tail(Run(folder).metrics))
    return as_count(int(found[-1])) if found else as_count(described.get("step"))


def _saved_step(folder: Path) -> int:
    """The step from which an interrupted run can resume; 0 for the beginning."""
    found = [match for path in Run(folder).states().files() if (match := _STATE.fullmatch(path.name))]
    return int(found[-1][1]) if found else 0


def _updated(folder: Path, described: Mapping[str, Any]) -> float:
    try:
        written = Run(folder).metrics.stat().st_mtime
    except OSError:
        written = 0.0
    return round(max(as_number(written, LATEST), as_number(described.get("updated"), LATEST)), 1)


def _tail(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - TAIL_BYTES, 0))
            return file.read()
    except OSError:
        return b""
