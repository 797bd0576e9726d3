"""How cost grows with a cache: adding one sample, building, looking after it, merging, one changed file.

Each job runs in a process of its own, so that its peak of memory is its own; memory that the system can evict does not
count. `python -m streamcache.bench.growth 1000000` measures one size, which takes some minutes for a million.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ..dataset_cache import (
    CacheWriter,
    FolderSource,
    Transform,
    compact,
    encode,
    make_plan,
    merge,
    open_cache,
    preview_clean,
    usage,
    verify,
)
from ..dataset_cache import Settings as PlanSettings
from .encoders import FixedImages, FixedTexts, private_state
from .memory import PROC
from .rounds import Settings
from .scanning import SETTLE_SECONDS, make_files
from .table import Figure, print_table

TARGETS = {"append": (0.1, 30.0), "build": (None, 100.0), "verify": (None, 100.0), "preview_clean": (None, 100.0)}
MOST_WRITTEN = 1.0  # MB, by adding one sample
_STEP = 0.002


def measure_growth(folder: Path, settings: Settings) -> list[Figure]:
    return [figure for size in settings.grown for figure in measure_size(folder / str(size), size)]


def measure_size(folder: Path, size: int) -> list[Figure]:
    """The figures of a cache of `size` samples with latents of 512 bytes."""
    group, figures = f"A cache of {size:,} samples", []
    folder.mkdir(parents=True)
    for job in JOBS:
        found = _in_child(job, folder, size)
        seconds, memory = TARGETS.get(job, (None, None))
        figures.append(Figure(group, job, found["seconds"], "s", seconds if size >= 1_000_000 else None))
        figures.append(Figure(group, f"{job}: memory", found["memory"], "MB", memory))
        if job == "append":
            figures.append(Figure(group, f"{job}: written", found["written"], "MB", MOST_WRITTEN))
    unchanged, changed = (next(f.value for f in figures if f.name == job) for job in ("unchanged", "one changed"))
    figures.append(
        Figure(group, "one changed, against unchanged", changed / unchanged, "×", 2.0 if size >= 100_000 else None)
    )
    shutil.rmtree(folder)
    return figures


def _sample(number: int) -> dict[str, object]:
    latent = {"samples": torch.full((1, 4, 8, 4), float(number))}
    return {"latent": latent, "caption": f"a photo of thing {number}", "source": f"{number:07}.png"}


def build(folder: Path, size: int) -> None:
    with CacheWriter(folder / "set") as writer:
        for number in range(size):
            writer.add(**_sample(number))


def append(folder: Path, size: int) -> None:
    with CacheWriter(folder / "set", append=True) as writer:
        writer.add(**_sample(size + int(time.time())))


def open_it(folder: Path, size: int) -> None:
    assert len(open_cache(folder / "set")) > size


def merge_one(folder: Path, size: int) -> None:
    merge([folder / "set"], folder / "merged")


def verify_all(folder: Path, size: int) -> None:
    assert not list(verify(folder / "set"))


def unchanged(folder: Path, size: int) -> None:
    assert _encode(folder).unchanged


def one_changed(folder: Path, size: int) -> None:
    assert _encode(folder).encoded["latent"] == 1


# In this order: what is before a job prepares it.
JOBS: dict[str, Callable[[Path, int], None]] = {
    "build": build,
    "append": append,
    "open": open_it,
    "usage": lambda folder, size: usage(folder / "set") and None,
    "preview_clean": lambda folder, size: preview_clean(folder / "set") and None,
    "verify": verify_all,
    "merge": merge_one,
    "compact": lambda folder, size: compact(folder / "set") and None,
    "unchanged": unchanged,
    "one changed": one_changed,
}


def _before(job: str, folder: Path, size: int) -> None:
    """What a job needs and is not measured with."""
    if job == "unchanged":
        make_files(folder / "images", 2 * size)  # half of them captions
        end = time.monotonic() + SETTLE_SECONDS
        while not _encode(folder).unchanged and time.monotonic() < end:
            time.sleep(0.05)
    if job == "one changed":
        image = sorted((folder / "images").rglob("*.png"))[size // 2]
        image.write_bytes(image.read_bytes() + b"\0")
        time.sleep(0.1)  # a file that was written a moment ago is rightly read once more


def _encode(folder: Path):
    settings = PlanSettings(Transform((16,), step=8), thumbnail=0)
    plan = make_plan(
        FolderSource(folder / "images"), image_encoder=FixedImages(0), text_encoder=FixedTexts(), settings=settings
    )
    return encode(plan, folder / "encoded")


def _in_child(job: str, folder: Path, size: int) -> dict[str, float]:
    command = [sys.executable, "-m", __spec__.name, "--job", job, str(folder), str(size)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _run(job: str, folder: Path, size: int) -> dict[str, float]:
    """Seconds, MB of anonymous memory above that at the start, and MB written."""
    torch.set_num_threads(1)
    with private_state(folder):
        with CacheWriter(folder / "warm") as writer:  # what is loaded on first use does not count
            writer.add(**_sample(0))
        shutil.rmtree(folder / "warm")
        _before(job, folder, size)
        with _Peak() as peak:
            JOBS[job](folder, size)
    return {"seconds": peak.seconds, "memory": peak.memory / 1e6, "written": peak.written / 1e6}


class _Peak:
    """The peak of anonymous memory, looked at every few milliseconds. Zeros if the system does not report memory."""

    def __enter__(self) -> "_Peak":
        self._start = self._top = _anonymous()
        self._written, self._on = _bytes_written(), True
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        self._since = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self.seconds = time.perf_counter() - self._since
        self._on = False
        self._thread.join()
        self.memory, self.written = self._top - self._start, _bytes_written() - self._written

    def _watch(self) -> None:
        while self._on:
            self._top = max(self._top, _anonymous())
            time.sleep(_STEP)


def _anonymous() -> int:
    return _field(PROC / "status", "RssAnon:") << 10


def _bytes_written() -> int:
    return _field(PROC / "io", "wchar:")


def _field(path: Path, label: str) -> int:
    if not path.exists():
        return 0
    line = next((line for line in path.read_text().splitlines() if line.startswith(label)), "0 0")
    return int(line.split()[1])


if __name__ == "__main__":
    if sys.argv[1] == "--job":
        print(json.dumps(_run(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))))
    else:
        with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as place:
            print_table(measure_size(Path(place) / "cache", int(sys.argv[1])))
