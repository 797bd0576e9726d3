"""The table of figures with their targets, printed and saved as JSON."""

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Figure:
    """One measured number. `target` is an upper bound, or a lower bound if more is better."""

    group: str
    name: str
    value: float
    unit: str
    target: float | None = None
    more_is_better: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.more_is_better else self.value <= self.target


def print_table(figures: Sequence[Figure]) -> None:
    rows = [_row(figure) for figure in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    group = None
    for figure, (name, value, target, verdict) in zip(figures, rows, strict=True):
        if figure.group != group:
            group = figure.group
            print(f"\n{group}")
        print(f"  {name:{widths[0]}}  {value:>{widths[1]}}  {target:>{widths[2]}}  {verdict:7}  {figure.note}".rstrip())
    aimed = [figure for figure in figures if figure.met is not None]
    print(f"\n{sum(bool(f.met) for f in aimed)} of {len(aimed)} targets met", flush=True)


def write_json(figures: Sequence[Figure], path: Path, settings: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**asdict(figure), "met": figure.met} for figure in figures]
    path.write_text(json.dumps({"machine": machine(), "settings": settings, "figures": rows}, indent=1), "utf-8")


def machine() -> dict[str, str | int | None]:
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def _row(figure: Figure) -> tuple[str, str, str, str]:
    sign = "≥" if figure.more_is_better else "≤"
    target = "" if figure.target is None else f"{sign} {_number(figure.target)} {figure.unit}"
    verdict = {None: "", True: "met", False: "NOT MET"}[figure.met]
    return figure.name, f"{_number(figure.value)} {figure.unit}", target, verdict


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) >= 100 else f"{value:.2f}"
