"""The results of a sweep: what each run reached, as a table, CSV, JSON, and its last sample images side by side."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from ...dataset_cache import replace_file
from ...lora_train import (
    SMOOTHING,
    Clock,
    draw_grid,
    format_seconds,
    read_curves,
    read_metrics,
    read_run_json,
    sample_images,
    smooth_curve,
)
from ..output import table
from .combinations import Combination

_CELL = 192
_CAPTION = 40  # characters of a prompt beside its row


@dataclass(frozen=True)
class RunResult:
    """What one run of a sweep has reached so far."""

    name: str
    settings: dict[str, Any]
    status: str
    step: int
    loss: float | None  # smoothed
    validation: float | None  # the best one
    validation_step: int | None
    seconds: float
    lora: str
    problem: str = ""


def read_result(run: Path, one: Combination, status: str, problem: str = "") -> RunResult:
    """The result of a run, from its files."""
    curves, described = read_curves(run / "metrics.jsonl"), read_run_json(run)
    losses = smooth_curve([loss for _, loss in curves.losses], SMOOTHING)
    measured = [entry for entry in curves.validation if entry[0]]  # at step 0 nothing is trained
    step, validation = min(measured, key=lambda entry: entry[1], default=(None, None))
    return RunResult(
        name=one.name,
        settings=dict(one.settings),
        status=status,
        step=max((step for step, _ in curves.losses), default=0),
        loss=losses[-1] if losses else None,
        validation=validation,
        validation_step=step,
        seconds=round(count_seconds(run / "metrics.jsonl"), 1),
        lora=str(described.get("lora") or ""),
        problem=problem,
    )


def count_seconds(metrics: Path) -> float:
    """How long the kept steps of a run took."""
    clock = Clock()
    return max((clock.add(row.get("time")) for row in read_metrics(metrics)), default=0.0)


def sort_results(results: Iterable[RunResult]) -> list[RunResult]:
    """The best validation first, without any by loss; what has neither is last."""

    def rank(one: RunResult) -> tuple[float, float, str]:
        return (
            math.inf if one.validation is None else one.validation,
            math.inf if one.loss is None else one.loss,
            one.name,
        )

    return sorted(results, key=rank)


def describe_results(results: Sequence[RunResult]) -> list[str]:
    """The table for people."""
    rows = [("run", "status", "steps", "loss", "best validation", "at step", "time")]
    for one in results:
        validation_step = "" if one.validation_step is None else f"{one.validation_step:,}"
        numbers = _number(one.loss), _number(one.validation), validation_step, format_seconds(one.seconds)
        rows.append((one.name, one.status, f"{one.step:,}", *numbers))
    problems = [f"{one.name}: {one.problem}" for one in results if one.problem]
    best = next((one for one in results if one.status == "done" and one.lora), None)
    return [*table(rows), *problems, *([f"Best: {best.lora}"] if best else [])]


def write_results(folder: Path, results: Sequence[RunResult], runs: Path) -> None:
    """results.json and results.csv, and samples.png if the runs have sample images."""
    folder.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for one in results for name in one.settings))
    rows = [{**{name: one.settings.get(name) for name in names}, **_facts(one)} for one in results]
    text = io.StringIO()
    writer = csv.DictWriter(text, ["name", *names, *(name for name in _facts(results[0]) if name != "name")])
    writer.writeheader()
    writer.writerows(rows)
    replace_file(folder / "results.csv", text.getvalue().encode())
    replace_file(folder / "results.json", json.dumps([asdict(one) for one in results], indent=1, default=str).encode())
    sheet = draw_samples([(one.name, runs / one.name) for one in results])
    if sheet is not None:
        picture = io.BytesIO()
        sheet.save(picture, "PNG")
        replace_file(folder / "samples.png", picture.getvalue())


def draw_samples(runs: Sequence[tuple[str, Path]]) -> Image.Image | None:
    """The last sample images of runs side by side: a column per run, a row per prompt. None if no run has any."""
    found = [(name, last) for name, run in runs if (last := _last_samples(run / "samples"))]
    if not found:
        return None
    blank = Image.new("RGB", (1, 1), "white")
    prompts = sorted({prompt for _, last in found for prompt in last})
    images = [[Image.open(last[prompt]) if prompt in last else blank for _, last in found] for prompt in prompts]
    captions = next((texts for _, run in runs if (texts := _captions(run))), [])
    names = [captions[prompt] if prompt < len(captions) else "" for prompt in prompts]
    return draw_grid(images, names, [name for name, _ in found], "Last sample images", _CELL)


def _captions(run: Path) -> list[str]:
    """The prompts of a run's sample images, as short as a row's name."""
    listed = read_run_json(run).get("prompts")
    texts = [" ".join(str(text).split()) for text in (listed if isinstance(listed, list) else [])]
    return [text if len(text) <= _CAPTION else f"{text[: _CAPTION - 1]}…" for text in texts]


def _last_samples(folder: Path) -> dict[int, Path]:
    """The images of the last step that has any, by prompt."""
    steps = sample_images(folder)
    return steps[max(steps)] if steps else {}


def _facts(one: RunResult) -> dict[str, Any]:
    return {name: value for name, value in asdict(one).items() if name != "settings"}


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5f}"
