"""The run's measurements: metrics.jsonl, one line per fact, readable by anything and safe to cut at any line."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FLUSH_SECONDS = 1.0


@dataclass(frozen=True)
class Curves:
    """What a loss plot shows."""

    losses: list[tuple[int, float]] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)


class MetricsFile:
    """Appends lines. A run resumed at step n first drops what an unsaved continuation wrote after n."""

    def __init__(self, path: Path, resume_at: int = 0) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        _keep_until(path, resume_at)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed by close, which `with` calls
        self._flushed = time.monotonic()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, **facts: Any) -> None:
        """One line; it reaches the file within about a second, or with the next flush."""
        self._file.write(json.dumps(facts, allow_nan=False) + "\n")
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._file.flush()
        self._flushed = time.monotonic()


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line; a line that a kill cut short is the last one, and is passed over."""
    if not path.exists():
        return
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue


def read_curves(path: Path) -> Curves:
    """The losses and held-out losses of a run."""
    curves = Curves()
    for row in read_metrics(path):
        if "loss" in row:
            curves.losses.append((row["step"], row["loss"]))
        elif "validation" in row:
            curves.validation.append((row["step"], row["validation"]))
    return curves


def _keep_until(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept = [row for row in read_metrics(path) if row["step"] <= step]
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    os.replace(temporary, path)
