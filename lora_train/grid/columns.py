"""The columns of a grid: which LoRA, at which strength."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import TrainError
from ...setting import NUMBERS, Limits, Setting, parse_setting
from ..run import Export, list_exports, missing_exports, recorded_exports

ALL, LAST = "all", "last"
_EXPORTS = Setting("exports", NUMBERS, (), Limits("", ""))


@dataclass(frozen=True)
class Column:
    """A LoRA at a strength, or the model without one (`file` is None)."""

    file: Path | None = None
    strength: float = 0.0
    name: str = ""  # of the LoRA, or of the run that exported it
    step: int | None = None  # of an export

    @property
    def label(self) -> str:
        """What is written above the column."""
        if self.file is None:
            return "without LoRA"
        step = "" if self.step is None else f" step {self.step:,}"
        return f"{self.name}{step} × {self.strength:g}"


def make_columns(loras: Iterable[Column], strengths: Sequence[float], base: bool) -> list[Column]:
    """A column for each LoRA at each strength, each once. A strength of 0 is the column without a LoRA."""
    found = [
        Column(lora.file, strength, lora.name, lora.step) for lora in loras for strength in strengths if strength != 0
    ]
    without = [Column()] if base or 0 in strengths else []
    columns = list(dict.fromkeys([*without, *found]))
    if not columns:
        raise TrainError("no LoRA is given, and base is off: the grid has no columns; name a LoRA or a run")
    return columns


def choose_exports(folder: Path, wanted: str = ALL, base: Path | None = None) -> list[Column]:
    """The LoRA files of a run, in `base` if given: all, the last one, or those of some steps, such as 500, 1000."""
    exports = list_exports(folder, base)
    if not exports:
        raise TrainError(f"{folder.name}: the run has no LoRA file; train it first, or name the files themselves")
    wanted = wanted.strip().lower() or ALL
    if wanted == LAST:
        exports = exports[-1:]
    elif wanted != ALL:
        lost = {export.step: export.path.name for export in recorded_exports(folder, base) if export not in exports}
        exports = _of_steps(exports, lost, parse_setting(_EXPORTS, wanted), folder.name)
    return [Column(export.path, 1.0, folder.name, export.step) for export in exports]


def describe_missing(folder: Path, wanted: str = ALL, base: Path | None = None) -> list[str]:
    """A remark on the LoRA files that are gone, which `choose_exports` leaves out unless their steps are named."""
    missing = missing_exports(folder, base) if wanted.strip().lower() in ("", ALL, LAST) else []
    return [f"{folder.name}: {len(missing):,} LoRA files are missing: {', '.join(missing)}"] if missing else []


def _of_steps(exports: Sequence[Export], lost: Mapping[int, str], steps: Sequence[int], run: str) -> list[Export]:
    by_step = {export.step: export for export in exports}  # of two files of one step, the last one
    for step in steps:
        if step in by_step:
            continue
        known = ", ".join(f"{known:,}" for known in by_step)
        if step in lost:
            raise TrainError(f"exports: the LoRA of step {step:,} of {run} is missing ({lost[step]}); there is {known}")
        raise TrainError(f"exports: {run} has no LoRA of step {step:,}; it has {known}")
    return [by_step[step] for step in dict.fromkeys(steps)]
