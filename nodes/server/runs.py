"""Training runs on pages: the list of their folders, and one run with its curves, settings, files and sample images."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...dataset_cache import StoredFile, spelled
from ...lora_train import (
    Run,
    TrainError,
    check_run_name,
    find_exports,
    has_name,
    hold_run,
    is_run_locked,
    list_exports,
    open_run_file,
    partial_lora,
    read_from,
    read_run_json,
    sample_images,
    written_files,
)
from ..library import contained, forget_result, parse_name
from ..outside import SAMPLE_FILE, Refused, as_count, as_dict, as_list, as_time, cut, cut_text
from .curves import MAX_STEP, CurveReader
from .live_runs import LiveRun, LiveRuns
from .moves import Move, move_folder

MAX_RUNS = 500  # listed, latest first
MAX_SAMPLES = 2000  # images per run
MAX_REPORT = 256 << 20
MAX_TAGS, MAX_TAG = 20, 40  # characters of a tag
MAX_COMMENT = 2000
TAIL_BYTES = 4096
REPORT = "report.html"
ENDS = ("done", "stopped", "interrupted", "failed")
_SAMPLE = re.compile(SAMPLE_FILE)
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
        folders = [folder for folder in self._folders() if os.path.isfile(folder / "run.json")]
        found = [self.row(folder, client) for folder in folders]
        return sorted(found, key=lambda row: (not row["live"], -row["updated"]))[:MAX_RUNS]

    def stamp(self) -> str:
        """Changes when a run appears, goes on, ends, or gets other tags, in whichever process. Reads no file."""
        files = (folder / name for folder in sorted(self._folders()) for name in ("run.json", "metrics.jsonl"))
        return hashlib.blake2b(repr([_stamp(file) for file in files]).encode(), digest_size=16).hexdigest()

    def _folders(self) -> list[Path]:
        if not self.places.runs.is_dir():
            return []
        below = [entry for entry in os.scandir(self.places.runs) if entry.is_dir(follow_symlinks=False)]
        return [Path(entry.path) for entry in below if entry.name[0] != "."]

    def row(self, folder: Path, client: str = "") -> dict[str, Any]:
        live = self.live.find(folder.name)
        try:
            described, problem = read_run_json(folder), ""
            status = _status(folder, described, live)
            saved = _saved_step(folder) if status == "interrupted" else 0
        except TrainError as error:  # it cannot be read now, and hides no other run
            described, problem, status, saved = {}, str(error), "failed", 0
        row = {
            "name": folder.name,
            "status": status,
            "live": live is not None,
            "node": live.node if live is not None and client and live.client == client else None,
            "step": _step(folder, described, status),
            "steps": as_count(described.get("steps")),
            "updated": _updated(folder, described),
            "dataset": self._dataset(described.get("dataset")),
            "lora": self._lora(folder.name, described),
            "saved_step": saved,
            "problem": cut_text(str(problem or described.get("problem") or "")) if status == "failed" else "",
            "notes": cut_text(str(described.get("notes") or "")),
            "tags": _tags(described),
            "comment": cut_text(str(described.get("comment") or "")),
        }
        if live is None:
            return row
        return {**row, "status": "running", "problem": "", **live.to_json(), "updated": round(time.time(), 1)}

    def describe(
        self, name: str, points: int, smoothing: float, client: str = "", first: int = 0, last: int = MAX_STEP
    ) -> dict[str, Any]:
        """One run with its curves from step `first` to `last`, settings, LoRA files and sample images."""
        folder = self.folder(name)
        live, run = self.live.find(folder.name), Run(folder)
        described = read_run_json(folder)
        settings = as_dict(described.get("config"))
        recent = list(live.recent) if live else ()
        report = folder / REPORT
        prompts = as_list(described.get("prompts")) or as_list(settings.get("sample_captions"))
        return {
            "run": self.row(folder, client),
            "settings": cut(settings),
            "host_settings": cut(as_dict(described.get("host"))),
            "curves": self.reader.curves(run.metrics, points, smoothing, recent, first, last),
            "samples": list_samples(run.samples),
            "prompts": [cut_text(str(text)) for text in prompts[:MAX_SAMPLES]],
            "exports": self._exports(folder),
            "memory": cut(as_dict(described.get("memory"))),
            "lora": self._lora(folder.name, described),
            "report": f"{self.places.runs.name}/{folder.name}/{report.name}" if report.is_file() else "",
        }

    def sample(self, name: str, file: str) -> SampleImage:
        """A sample image. A later run may write another one under the same name."""
        if not _SAMPLE.fullmatch(file):
            raise Refused("file: expected a name such as step-00000100-0.png")
        path = contained(self.folder(name), ["samples", file], file)
        opened = _open(path, f"{name} has no sample image {file}")
        return SampleImage(read_from(opened), str(opened.identity[-1]))

    def report(self, name: str) -> bytes:
        """The report page that the trainer writes at the end of a run."""
        path = contained(self.folder(name), [REPORT], REPORT)
        opened = _open(path, f"{name} has no report")
        if opened.size > MAX_REPORT:
            raise Refused(f"the report of {name} is larger than {MAX_REPORT >> 20} MiB", 409)
        return read_from(opened)

    def table(self, name: str) -> str:
        """The measurements of every step of a run, as CSV."""
        return self.reader.table(Run(self.folder(name)).metrics)

    def lora(self, name: str, file: str) -> Path:
        """The path of one of the run's LoRA files."""
        folder = self.folder(name)
        known = [*(row["file"] for row in self._exports(folder)), self._lora(folder.name, read_run_json(folder))]
        if not file or file not in known:
            raise Refused(f"{name} has no LoRA file {cut_text(file, 200)}", 404)
        return contained(self.places.loras, [file], file)

    def label(self, name: str, tags: Sequence[str], comment: str) -> None:
        """Store what the user says about a run."""
        tags = list(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
        if len(tags) > MAX_TAGS or any(len(tag) > MAX_TAG for tag in tags):
            raise Refused(f"tags: expected at most {MAX_TAGS} tags of at most {MAX_TAG} characters")
        with self.unused(name):
            self._described(name).amend(tags=tags, comment=comment.strip())

    def rename(self, name: str, to: str) -> Path:
        """Give a run another name. Its LoRA files keep theirs."""
        check_run_name(to, new=True)
        target = contained(self.places.runs, [parse_name(to)[0]], to)
        folder = self.folder(name)
        if os.path.lexists(target.with_name(spelled(target.parent, target.name))):
            raise Refused(f"another run named {to} exists; choose another name", 409)
        self._refuse_loras_of_others(folder, to)
        with self.unused(name) as move:
            run, before = self._described(name), read_run_json(folder)
            lora = self._lora(folder.name, before)
            if lora and "lora" not in before:  # of an earlier version, whose LoRA is found by its name
                run.amend(lora=str(self.places.loras / lora))
            move_folder(folder, target, move=move)
            Run(target).amend()
        forget_result(folder)
        return target

    def _refuse_loras_of_others(self, folder: Path, to: str) -> None:
        """LoRA files may outlive their run; one that got its name would overwrite them when it goes on."""
        final = self.places.loras / spelled(self.places.loras, f"{to}.safetensors")
        for path in (final, *find_exports(final).values()):
            if os.path.lexists(path) and not has_name(path, written_files(folder)):
                raise Refused(f"the LoRA {cut_text(path.name, 200)} of another run exists; choose another name", 409)

    def _described(self, name: str) -> Run:
        """A run whose run.json can be changed."""
        run = Run(self.folder(name))
        if not read_run_json(run.folder):
            raise Refused(f"run.json of {name} is damaged; it cannot be changed", 409)
        return run

    def folder(self, name: str) -> Path:
        """The folder of a run. Names that point elsewhere are refused."""
        check_run_name(name)
        folder = contained(self.places.runs, [spelled(self.places.runs, name)], name)
        if not (folder / "run.json").is_file():
            raise Refused(f"no such run: {name}", 404)
        return folder

    @contextmanager
    def unused(self, name: str) -> Iterator[Move]:
        """Inside the `with`, no process trains the run; what it gives moves it. Refused while it is training."""
        refusal = Refused(f"{name} is training; stop it first", 409)
        folder = self.folder(name)
        if self.live.find(folder.name) is not None:
            raise refusal
        with ExitStack() as stack:
            try:
                move = stack.enter_context(hold_run(folder))
            except OSError:  # also if that cannot be found out
                raise refusal from None
            yield move

    def _exports(self, folder: Path) -> list[dict[str, Any]]:
        """The LoRA files of a run in the order of steps, those that ComfyUI's folder of LoRAs has."""
        return [
            {
                "file": each.path.name,
                "step": each.step,
                "epoch": each.epoch,
                "loss": each.loss,
                "validation": each.validation,
                "partial": each.partial,
            }
            for each in list_exports(folder, self.places.loras)
        ]

    def _lora(self, name: str, described: Mapping[str, Any]) -> str:
        """The file of the LoRA: the one that the run wrote last.

        Runs of earlier versions have not recorded it: there, the finished one, or what was saved when the run stopped.
        """
        finished, recorded = self.places.loras / f"{name}.safetensors", described.get("lora")
        if isinstance(recorded, str):
            wanted = [self.places.loras / Path(recorded).name]
        else:
            wanted = [finished, partial_lora(finished, as_count(described.get("step")))]
        files = (file.with_name(spelled(file.parent, file.name)) for file in wanted)
        return next((file.name for file in files if os.path.isfile(file)), "")

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
    rows = [(step, prompt, path) for step, images in sample_images(folder).items() for prompt, path in images.items()]
    return [
        {"step": step, "prompt": prompt, "file": path.name, "mtime": sample_mtime(path)}
        for step, prompt, path in rows[-MAX_SAMPLES:]
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


def _tags(described: Mapping[str, Any]) -> list[str]:
    found = [tag for tag in as_list(described.get("tags")) if isinstance(tag, str)]
    return [cut_text(tag, MAX_TAG) for tag in found[:MAX_TAGS]]


def _stamp(path: Path) -> tuple[str, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return str(path), 0, 0
    return str(path), found.st_mtime_ns, found.st_size


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
    return round(max(as_time(written), as_time(described.get("updated"))), 1)


def _tail(path: Path) -> bytes:
    try:
        file = open_run_file(path)
        return b"" if file is None else read_from(file, max(file.size - TAIL_BYTES, 0))
    except TrainError:  # the step in run.json is shown instead
        return b""


def _open(path: Path, missing: str) -> StoredFile:
    file = open_run_file(path)
    if file is None:
        raise Refused(missing, 404)
    return file
