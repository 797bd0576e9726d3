"""The LoRA files of a run, those along the way and the last one: their names, and their list in run.json."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...dataset_cache import normal_form
from .folder import is_partial_lora, read_run_json
from .metrics import MAX_STEP, is_finite
from .run_files import list_names, may_be_file

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


def export_step(path: Path, final: Path) -> int | None:
    """The step in the name of a file along the way; None if it has another name than those beside this final one."""
    own = rf"{re.escape(normal_form(final.stem))}-(\d{{{DIGITS},15}}){re.escape(final.suffix)}"
    match = re.fullmatch(own, normal_form(path.name))
    return int(match[1]) if match and path.absolute().parent == final.absolute().parent else None


def find_exports(final: Path) -> dict[int, Path]:
    """The files beside a final LoRA that have the name of one along the way, by step, also those that no run wrote."""
    paths = [final.with_name(name) for name in list_names(final.parent)]
    return {step: path for path in paths if (step := export_step(path, final)) is not None}


def list_exports(folder: Path, base: Path | None = None) -> list[Export]:
    """The LoRA files of the run in this folder, in the order of steps, the final (or partial) one last.

    Only those whose file exists. Raises TrainError if run.json cannot be read now.
    """
    return [export for export in recorded_exports(folder, base) if may_be_file(export.path)]


def missing_exports(folder: Path, base: Path | None = None) -> list[str]:
    """The names of the recorded LoRA files that are gone."""
    return [export.path.name for export in recorded_exports(folder, base) if not may_be_file(export.path)]


def recorded_exports(folder: Path, base: Path | None = None) -> list[Export]:
    """All LoRA files that run.json names, in the order of steps. Entries that no run would write are skipped.

    They are in the folder that run.json names, unless `base` is given: a run may come from elsewhere.
    """
    described = read_run_json(folder)
    last = _path(described.get("lora"))
    if last is not None and base is not None:
        last = base / last.name
    base = base or _path(described.get("loras")) or (last.parent if last is not None else None)
    found = {}
    if base is not None:
        listed = described.get("exports")
        entries = [_read(base, entry) for entry in (listed if isinstance(listed, list) else [])]
        found = {export.path.name: export for export in entries if export is not None}
    if last is not None and last.name not in found:  # runs of earlier versions list none
        found[last.name] = _last_of(last, described)
    return sorted(found.values(), key=lambda export: (export.step, export.path == last, export.path.name))


def written_files(folder: Path) -> list[Path]:
    """The LoRA files that the run in this folder wrote, those along the way also if it no longer lists them."""
    described, recorded = read_run_json(folder), [export.path for export in recorded_exports(folder)]
    base, listed = _path(described.get("loras")), described.get("written")
    names = listed if base is not None and isinstance(listed, list) else []
    return [*recorded, *(base / name for name in names if base is not None and is_plain_name(name))]


def is_written(final: Path, folder: Path) -> bool:
    """Whether the run in this folder wrote this final LoRA. The name counts: files may have been moved since.

    One that has recorded no LoRA is of an earlier version, or was killed before it could: then the file is its own too.
    """
    last = _path(read_run_json(folder).get("lora"))
    if last is None or is_partial_lora(final.with_name(last.name), final):
        return True
    return has_name(final, written_files(folder))


def has_name(path: Path, others: Iterable[Path]) -> bool:
    """Whether one of the others has the name of this file."""
    return normal_form(path.name) in {normal_form(other.name) for other in others}


def describe_exports(exports: Sequence[Export]) -> list[dict[str, Any]]:
    """The list as run.json has it."""
    return [
        {"file": one.path.name, "step": one.step, "epoch": one.epoch, "loss": one.loss, "validation": one.validation}
        for one in exports
    ]


def superfluous(exports: Sequence[Export], keep: int, by: str) -> list[Export]:
    """Those that are not kept: all but the last `keep`, or those with the lowest validation loss. 0 keeps all."""
    if not keep:
        return []

    def rank(export: Export) -> tuple[float, int]:
        worst = math.inf if export.validation is None else export.validation
        return worst if by == "validation" else 0.0, -export.step

    return sorted(exports, key=rank)[keep:]


def _read(base: Path, entry: Any) -> Export | None:
    step = _count(entry.get("step")) if isinstance(entry, dict) else None
    if step is None or not is_plain_name(entry.get("file")):
        return None
    path, numbers = base / entry["file"], [_number(entry.get(name)) for name in ("loss", "validation")]
    return Export(path, step, _count(entry.get("epoch")) or 0, *numbers, partial=_partial_step(path.name) == step)


def _last_of(path: Path, described: Mapping[str, Any]) -> Export:
    partial = _partial_step(path.name)
    return Export(path, partial or _count(described.get("step")) or 0, 0, None, None, partial is not None)


def _path(recorded: Any) -> Path | None:
    return Path(recorded) if isinstance(recorded, str) and recorded and _is_encodable(recorded) else None


def is_plain_name(name: Any) -> bool:
    """Whether this is the name of a LoRA file, without a folder: run.json may come from elsewhere."""
    return isinstance(name, str) and _PLAIN_NAME.fullmatch(name) is not None and _is_encodable(name)


def _is_encodable(text: str) -> bool:
    """Whether the system can be asked for a file of this name."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _partial_step(name: str) -> int | None:
    match = _PARTIAL.fullmatch(name)
    return int(match[1]) if match else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < MAX_STEP else None


def _number(value: Any) -> float | None:
    return float(value) if is_finite(value) else None
