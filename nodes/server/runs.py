"""Runs: the folders of all trainings, as a list and one by one, whether they train now, ended or were cut off."""

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
from .refusals import Refused
from .untrusted import as_dict, cut, cut_text

MOST_RUNS = 500  # that are listed, the latest first
MOST_SAMPLES = 2000  # pictures of one run
TAIL_BYTES = 4096
LATEST = 1e11  # seconds; a time after that is none
ENDS = ("done", "stopped", "interrupted", "failed")
_SAMPLE = re.compile(r"step-(\d{1,12})-(\d{1,4})\.png")
_STATE = re.compile(r"step-(\d{1,12})\.safetensors")
_STEP = re.compile(rb'"step": (\d+), "epoch"')


@dataclass(frozen=True)
class RunPlaces:
    """Where runs, their LoRAs and the datasets are."""

    runs: Path
    loras: Path
    caches: Sequence[Path] = ()


@dataclass(frozen=True)
class SamplePicture:
    """A picture as it is now, and when it was written."""

    data: bytes
    mtime: str


@dataclass
class Runs:
    """All runs below a folder."""

    places: RunPlaces
    live: LiveRuns
    reader: CurveReader = field(default_factory=CurveReader)

    def rows(self, client: str = "") -> list[dict[str, Any]]:
        """The list. A run that cannot be read is left out; a node is told only to the page whose node it is."""
        if not self.places.runs.is_dir():
            return []
        below = [Path(entry.path) for entry in os.scandir(self.places.runs) if entry.is_dir(follow_symlinks=False)]
        folders = [f for f in below if os.path.isfile(f / "run.json") and f.name[0] != "."]
        found = [self.row(folder, client) for folder in folders]
        return sorted(found, key=lambda row: (not row["live"], -row["updated"]))[:MOST_RUNS]

    def row(self, folder: Path, client: str = "") -> dict[str, Any]:
        told, live = read_run_json(folder), self.live.find(folder.name)
        status = _status(folder, told, live)
        row = {
            "name": folder.name,
            "status": status,
            "live": live is not None,
            "node": live.node if live is not None and client and live.client == client else None,
            "step": _step(folder, told, status),
            "steps": _whole(told.get("steps")),
            "updated": _updated(folder, told),
            "dataset": self._dataset(told.get("dataset")),
            "lora": self._lora(folder.name),
            "saved_step": _saved_step(folder) if status == "interrupted" else 0,
            "problem": cut_text(str(told.get("problem") or "")) if status == "failed" else "",
            "notes": cut_text(str(told.get("notes") or "")),
        }
        return row if live is None else {**row, **live.facts(), "updated": round(time.time(), 1)}

    def describe(self, name: str, points: int, smoothing: float, client: str = "") -> dict[str, Any]:
        """One run with its curves, settings and pictures."""
        folder = self.folder(name)
        live, run = self.live.find(name), Run(folder)
        settings = as_dict(read_run_json(folder).get("config"))
        report = folder / "report.html"
        return {
            "run": self.row(folder, client),
            "settings": cut(settings),
            "curves": self.reader.curves(run.metrics, points, smoothing, list(live.recent) if live else ()),
            "samples": list_samples(run.samples),
            "lora": self._lora(name),
            "report": f"{self.places.runs.name}/{name}/{report.name}" if report.is_file() else "",
        }

    def sample(self, name: str, file: str) -> SamplePicture:
        """A sample picture. A later run may have one of the same name."""
        if not _SAMPLE.fullmatch(file):
            raise Refused("file: a name such as step-00000100-0.png is expected")
        path = contained(self.folder(name), ["samples", file], file)
        try:
            with open(path, "rb") as opened:
                return SamplePicture(opened.read(), str(os.fstat(opened.fileno()).st_mtime_ns))
        except FileNotFoundError:
            raise Refused(f"{name} has no picture {file}", 404) from None

    def folder(self, name: str) -> Path:
        """A run's folder by its name, which leads nowhere else."""
        check_run_name(name)
        folder = contained(self.places.runs, [name], name)
        if not (folder / "run.json").is_file():
            raise Refused(f"there is no run {name}", 404)
        return folder

    def idle_folder(self, name: str) -> Path:
        """The folder of a run that nobody trains, so that it can be moved."""
        folder = self.folder(name)
        if self.live.find(name) is not None or is_run_locked(folder):
            raise Refused(f"{name} is training; stop it first", 409)
        return folder

    def _lora(self, name: str) -> str:
        file = f"{name}.safetensors"
        return file if os.path.isfile(self.places.loras / file) else ""

    def _dataset(self, path: Any) -> str:
        """The name that the dataset is loaded by; of one elsewhere, its folder's name."""
        if not isinstance(path, str) or not path:
            return ""
        for root in self.places.caches:
            if Path(path).is_relative_to(root):
                return cut_text(Path(path).relative_to(root).as_posix())
        return cut_text(Path(path).name)


def list_samples(folder: Path) -> list[dict[str, Any]]:
    """The pictures of a run by step, then by prompt."""
    found = [match for path in folder.glob("step-*.png") if (match := _SAMPLE.fullmatch(path.name))]
    rows = sorted((int(match[1]), int(match[2]), match[0]) for match in found)
    return [
        {"step": step, "prompt": prompt, "file": file, "mtime": sample_mtime(folder / file)}
        for step, prompt, file in rows[-MOST_SAMPLES:]
    ]


def sample_mtime(path: Path) -> str:
    """By which pages tell a picture from an earlier run's of the same name. Nanoseconds, so a text: a page's numbers
    have fewer digits."""
    try:
        return str(path.stat().st_mtime_ns)
    except OSError:  # removed meanwhile
        return ""


def _status(folder: Path, told: Mapping[str, Any], live: LiveRun | None) -> str:
    if live is not None:
        return "running"
    status = told.get("status")
    if status not in (None, "running"):
        return status if status in ENDS else "failed"
    if is_run_locked(folder):
        return "running"
    # Its process ended without a word; or, without a status, it never came to its first step.
    return "interrupted" if status else "failed"


def _step(folder: Path, told: Mapping[str, Any], status: str) -> int:
    if status not in ("running", "interrupted") and "step" in told:
        return _whole(told["step"])
    found = _STEP.findall(_tail(Run(folder).metrics))
    return _whole(int(found[-1])) if found else _whole(told.get("step"))


def _saved_step(folder: Path) -> int:
    """From which an interrupted run goes on; 0 if from its beginning."""
    found = [match for path in Run(folder).states().files() if (match := _STATE.fullmatch(path.name))]
    return int(found[-1][1]) if found else 0


def _updated(folder: Path, told: Mapping[str, Any]) -> float:
    try:
        written = Run(folder).metrics.stat().st_mtime
    except OSError:
        written = 0.0
    return round(max(_time(written), _time(told.get("updated"))), 1)


def _time(value: Any) -> float:
    return float(value) if type(value) in (int, float) and 0 <= value < LATEST else 0.0


def _tail(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - TAIL_BYTES, 0))
            return file.read()
    except OSError:
        return b""


def _whole(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 1 << 53 else 0
