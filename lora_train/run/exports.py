"""The LoRA files of a run, those along the way and the last one: their names, and their list in run.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .folder import read_run_json
from .metrics import MAX_STEP, is_finite
from .run_files import may_be_file

DIGITS = 6  # of the step in a name, so that names sort; more if the run has more steps
_PLAIN_NAME = re.compile(r"[^/\\:\0]+\.safetensors")
_PARTIAL = re.compile(r".+-step(\d{8,15})\.safetensors")


@dataclass(frozen=True)
class Export:
    """A LoRA file of a run, with the measurements after the step that it was saved at."""

    path: Path
    step: int
    epoch: int
    loss: float | None  # smoothed, as it is shown while the run trains
    validation: float | None
    partial: bool  # saved because the run was interrupted at this step


def export_path(final: Path, step: int, steps: int) -> Path:
    """The file of the LoRA after a step, beside the final one: my_lora-000500.safetensors."""
    width = max(DIGITS, len(str(steps)))
    return final.with_name(f"{final.stem}-{step:0{width}}{final.suffix}")


def list_exports(folder: Path) -> list[Export]:
    """The LoRA files of the run in this folder, in the order of steps, the final (or partial) one last.

    Only those whose file exists. Raises TrainError if run.json cannot be read now.
    """
    return [export for export in recorded_exports(folder) if may_be_file(export.path)]


def missing_exports(folder: Path) -> list[str]:
    """The names of the recorded LoRA files that are gone."""
    return [export.path.name for export in recorded_exports(folder) if not may_be_file(export.path)]


def recorded_exports(folder: Path) -> list[Export]:
    """All LoRA files that run.json names, in the order of steps. Entries that no run would write are skipped."""
    described = read_run_json(folder)
    last = _path(described.get("lora"))
    base = last.parent if last is not None else _path(described.get("loras"))
    found = {}
    if base is not None:
        listed = described.get("exports")
        entries = [_read(base, entry) for entry in (listed if isinstance(listed, list) else [])]
        found = {export.path.name: export for export in entries if export is not None}
    if last is not None and last.name not in found:  # runs of earlier versions list none
        found[last.name] = _last_of(last, described)
    return sorted(found.values(), key=lambda export: (export.step, export.path == last, export.path.name))


def _read(base: Path, entry: Any) -> Export | None:
    if not isinstance(entry, dict) or not is_plain_name(entry.get("file")) or not _is_count(entry.get("step")):
        return None
    path, step, epoch = base / entry["file"], entry["step"], entry.get("epoch")
    numbers = (float(value) if is_finite(value) else None for value in (entry.get("loss"), entry.get("validation")))
    return Export(path, step, epoch if _is_count(epoch) else 0, *numbers, partial=_partial_step(path.name) == step)


def _last_of(path: Path, described: Mapping[str, Any]) -> Export:
    partial, step = _partial_step(path.name), described.get("step")
    return Export(path, partial or (step if _is_count(step) else 0), 0, None, None, partial is not None)


def _path(recorded: Any) -> Path | None:
    return Path(recorded) if isinstance(recorded, str) and recorded else None


def is_plain_name(name: Any) -> bool:
    """Whether this is the name of a LoRA file, without a folder: run.json may come from elsewhere."""
    return isinstance(name, str) and _PLAIN_NAME.fullmatch(name) is not None


def _partial_step(name: str) -> int | None:
    match = _PARTIAL.fullmatch(name)
    return int(match[1]) if match else None


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_STEP
