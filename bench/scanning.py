"""Checking an unchanged source, against a bare walk over the same folders with one stat per file."""

import os
import time
from pathlib import Path

from ..dataset_cache import FolderSource, Plan, Transform, encode, make_plan
from ..dataset_cache import Settings as PlanSettings
from .encoders import FixedTexts, private_state, save_image
from .rounds import Settings, take_turns
from .table import Figure

IN_A_FOLDER = 2000
SETTLE_SECONDS = 30  # far more than the times of any file system need
WALK, VALIDATE = "bare walk, one stat per file", "a whole run over the unchanged source"


def measure_scanning(folder: Path, settings: Settings) -> list[Figure]:
    source, cache = folder / "set", folder / "cache"
    make_files(source, settings.files)
    with private_state(folder):
        _encode_until_settled(source, cache)
        contestants = {WALK: lambda _: walk(str(source)), VALIDATE: lambda _: _validate(source, cache)}
        times = take_turns(contestants, [[0]] * (settings.scan_rounds + 1))
    group = f"Checking {settings.files:,} unchanged files"
    return [
        *(Figure(group, name, times.median(name), "s") for name in contestants),
        Figure(group, f"{VALIDATE}, against the walk", times.ratio(VALIDATE, WALK), "×", 1.5),
    ]


def walk(root: str) -> int:
    """The limit: one scandir per folder, one stat per file."""
    count, pending = 0, [root]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    pending.append(entry.path)
                else:
                    entry.stat()
                    count += 1
    return count


def make_files(root: Path, count: int) -> None:
    """Half images, half captions. All images are the same, which makes no difference here."""
    save_image(root / "first.png", 16)
    data = (root / "first.png").read_bytes()
    for number in range(count // 2):
        folder = root / f"{number // IN_A_FOLDER:03}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number:06}.png").write_bytes(data)
        (folder / f"{number:06}.txt").write_text(f"caption {number % 100}")


def _encode_until_settled(source: Path, cache: Path) -> None:
    """Encode until a run finds nothing new: files that were written a moment ago are rightly read once more."""
    end = time.monotonic() + SETTLE_SECONDS
    while not encode(_plan(source), cache).unchanged and time.monotonic() < end:
        time.sleep(0.05)


def _plan(source: Path) -> Plan:
    settings = PlanSettings(Transform((16,), step=8), thumbnail=0)
    return make_plan(FolderSource(source), text_encoder=FixedTexts(), settings=settings)


def _validate(source: Path, cache: Path) -> None:
    report = encode(_plan(source), cache)
    assert report.unchanged and not report.counts.opened
